"""Queueing disciplines, one per file."""
