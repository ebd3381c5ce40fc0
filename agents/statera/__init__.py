"""The agent that regulates concurrency and token budget and bounds output lengths."""
