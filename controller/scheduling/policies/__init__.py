"""Queueing disciplines, one a file."""
