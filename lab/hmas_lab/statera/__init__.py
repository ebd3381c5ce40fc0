"""Statera alone: how its length bounds cover, and how its window answers steps, ramps and bursts, beside other laws."""
