"""The demo: H-MAS and baselines end to end on this machine."""
