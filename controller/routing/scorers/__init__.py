"""Scorers: each says how good every instance is for a request, from 0 to 1. Routers weigh them."""
