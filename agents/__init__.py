"""The five agents: each is a pure model or control law under a thin process shell."""
