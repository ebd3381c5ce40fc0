"""Statistics of a stream in bounded memory, for scheduler, agents and reports alike. Pure."""
