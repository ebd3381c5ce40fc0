"""Observers that send what they hear to other systems. Each is configured, and imported only where it is."""
