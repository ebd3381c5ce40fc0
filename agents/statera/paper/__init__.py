"""Statera's laws as the paper prints them (Algorithm 2, 3.4.2): `agents.statera_law: paper`."""
