"""Trained models as artefacts: versioned folders, the active one, and the one in shadow mode."""
