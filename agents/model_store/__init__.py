"""Trained models as artefacts: versioned folders, which one is in force, and what is tried beside it."""
