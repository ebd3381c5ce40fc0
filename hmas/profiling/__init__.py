"""Profiles from measurements: a bounded load for a live engine, and the fit of a step time to what it showed."""
