"""The model of output lengths: a trained base, corrected online by the lengths of real answers."""
