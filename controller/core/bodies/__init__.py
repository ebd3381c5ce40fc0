"""Bodies of APIs other than chat completions, read as the chat completion that asks for the same. Pure."""
