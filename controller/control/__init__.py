"""Decides which answers of agents are used: estimates of requests, and scores against the defaults that they replace. Pure."""
