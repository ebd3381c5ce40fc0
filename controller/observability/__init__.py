"""Metrics, event log, decision log, request traces and completions: records what happens, without influence on it."""
