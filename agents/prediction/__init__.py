"""Estimates what a request will cost."""
