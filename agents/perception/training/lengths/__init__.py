"""Trains and judges the model of output lengths, beside plain baselines; nothing at run time needs this."""
