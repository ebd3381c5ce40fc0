"""Training and evaluation from logs and generated episodes; a running agent imports none of it."""
