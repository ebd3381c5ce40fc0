"""Which instance a request goes to: pure decisions."""
