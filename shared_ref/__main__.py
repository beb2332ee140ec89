"""`python -m shared_ref`: the command `kvcanary`, where no script is installed."""

from .cli import main

main()
