"""Receives the settings of agents and operators, lets `control` decide which of them apply, and applies those."""
