"""A tenant beside one that floods: whether it keeps what it has alone."""
