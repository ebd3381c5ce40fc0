"""Routers: they choose the instance for a request. `registry.py` lists them."""
