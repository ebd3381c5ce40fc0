"""Sends load as clients do, and turns what they saw into figures."""
