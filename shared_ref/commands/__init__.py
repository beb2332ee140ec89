"""The commands of `kvcanary`, one module each."""
