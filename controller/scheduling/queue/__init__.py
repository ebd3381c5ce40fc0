"""All queued requests in the order of the active policy, and the change to another policy."""
