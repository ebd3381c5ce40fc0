"""H-MAS's evaluation in the calibrated simulator: its load scaling, replays, stress tests, slices, ablations and robustness."""
