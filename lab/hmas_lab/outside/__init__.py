"""Other projects' load tools before an engine and before the gateway, in turn: their figures, not ours."""
