"""Five agents: a pure model or control law each, under a thin process shell."""
