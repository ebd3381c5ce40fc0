"""Trains and judges the shipped perception model; needs torch to train, which nothing at run time does."""
