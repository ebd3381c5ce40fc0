"""Training and judging from logs and generated episodes; a running agent imports none of it."""
