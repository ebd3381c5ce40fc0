"""The vocabulary that all other packages share: types, messages, objectives, SLO tables. Pure."""
