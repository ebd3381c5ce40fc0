"""The OpenAI-compatible HTTP door and the life of a request."""
