"""Tags each request: task type, SLO, output length."""
