"""Receives what agents and operators set, asks `control` which of it applies, and applies that."""
