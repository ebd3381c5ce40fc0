"""The demo's comparison on a real vLLM."""
