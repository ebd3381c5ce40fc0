"""Studies with the simulator: one run (`simulate`), a grid of runs (`sweep`), and capacity planning (`plan`)."""
