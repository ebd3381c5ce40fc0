"""Redis Streams: typed messages in and out, and the embedded server."""
