"""What listens: metrics, event log, decision log, request traces, completions."""
