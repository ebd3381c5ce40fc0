"""The agent that estimates what a request will cost."""
