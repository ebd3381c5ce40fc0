"""What a long-lived process needs: clock, logging, signals, readiness, child processes."""
