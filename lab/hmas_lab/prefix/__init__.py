"""Prefix caches on a simulated fleet: routers of the product beside those of other gateways."""
