"""The plan inside serving stacks that run on JAX: `sglang_jax`, and `vllm` for tpu-inference."""
