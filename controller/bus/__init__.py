"""Typed messages over Redis Streams, and the embedded server."""
