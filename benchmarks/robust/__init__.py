"""What `python -m benchmarks.robustness` does: drawn launches in bulk, and other hardships."""
