"""The digital twin: it replays recent traffic under every candidate on a model of the engines fitted to their measured behaviour."""
