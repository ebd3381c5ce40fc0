"""HTTP/1.1 towards an engine at the level of bytes: connections, and what reads an answer."""
