"""The process around an agent: it reads the agent's streams, calls the agent, posts its answers and stops cleanly."""
