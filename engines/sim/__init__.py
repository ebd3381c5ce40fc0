"""The embedded engine: a pure model of continuous batching, and its OpenAI-compatible server."""
