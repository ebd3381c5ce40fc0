"""Regulates concurrency and token budget, and bounds output lengths."""
