"""The plan inside serving stacks that run on PyTorch: `sglang`, `vllm`."""
