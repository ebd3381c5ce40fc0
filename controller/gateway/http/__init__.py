"""HTTP/1.1 towards clients at the level of bytes: heads, bodies, connections, answers."""
