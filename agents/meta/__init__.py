"""The agent that chooses the queueing policy, behind guards."""
