"""Evaluates forecasts of output lengths on answers of many models, beside plain baselines."""
