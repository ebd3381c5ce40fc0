"""The basics of a long-lived process: clock, logging, signals, readiness, child processes."""
