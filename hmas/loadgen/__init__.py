"""Load generator: sends requests as clients do, and scores the measured results."""
