"""The command line `hmas`."""
