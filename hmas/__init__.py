"""The operator's door: command line, demo, replay and experiments."""
