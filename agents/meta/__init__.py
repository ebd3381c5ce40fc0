"""Picks the queueing policy, guarded."""
