"""Which of the five agents run."""

from hmas.controller.config.schema import AgentsConfig
from hmas.controller.scheduling.policies.registry import named

AGENT_NAMES = ("perception", "prediction", "qos", "meta", "statera")
"""The five agents, in the order in which a request's figures pass through them."""


def running_agents(agents: AgentsConfig) -> tuple[str, ...]:
    """Names of the agents that run, in the order of `AGENT_NAMES`; empty where agents are switched off."""
    only = named(agents.only)
    return tuple(name for name in AGENT_NAMES if agents.enabled and (not only or name in only))
