"""HTTP/1.1 to an engine at the level of bytes: connections, and the parsing of answers."""
