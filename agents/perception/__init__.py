"""The agent that tags each request with task type, SLO and output length."""
