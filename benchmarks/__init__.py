"""Where the performance figures come from. Scripts are run as modules: `python -m benchmarks.bench_plan`."""
