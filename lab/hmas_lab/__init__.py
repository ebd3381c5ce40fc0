"""Workloads, traces, load generation and scoring."""
