"""What of the agents' answers is used: estimates of requests, and scores against the defaults that they replace. Pure."""
