"""What executes requests: the engine protocol and its implementations. The lowest floor; imports nothing above it."""
