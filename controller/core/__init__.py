"""The vocabulary that every other room shares: types, messages, objectives, SLO tables. Pure."""
