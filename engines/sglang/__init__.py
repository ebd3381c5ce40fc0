"""The adapter of SGLang."""
