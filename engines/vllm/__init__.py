"""vLLM: the adapter, and a logits processor that is loaded into the engine."""
