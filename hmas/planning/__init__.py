"""Questions to the simulator: one run (`simulate`), a grid of runs (`sweep`), and a capacity planner's questions (`plan`)."""
