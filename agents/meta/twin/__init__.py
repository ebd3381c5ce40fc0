"""The digital twin: the traffic of late, replayed under every candidate on engines as they have shown themselves."""
