"""Trains and judges the model of output lengths, beside plain baselines; only training needs torch, and nothing at run time needs this."""
