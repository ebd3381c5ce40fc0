"""The registries of routers and scorers. A router is written `NAME` or `NAME:SCORER=WEIGHT:...`, which changes the weights it has."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.placement import Router, Scorer
from hmas.controller.routing.least_loaded import LeastLoaded
from hmas.controller.routing.scored import ScoredRouter
from hmas.controller.routing.scorers.balance import Alone, Backlog
from hmas.controller.routing.scorers.capability import Capability
from hmas.controller.routing.scorers.load import Completion, FirstToken, KvCache, Queue, Speed
from hmas.controller.routing.scorers.prefix import Prefix
from hmas.controller.routing.scorers.session import Session
from hmas.controller.routing.turns import CapacityProportional, RoundRobin

DEFAULT_ROUTER = "default"
WEIGHT_MOST = 1000.0
_BUILT_IN: tuple[type[Scorer], ...] = (Queue, KvCache, FirstToken, Speed, Completion, Alone, Backlog, Session, Prefix, Capability)
_scorers: dict[str, type[Scorer]] = {kind.name: kind for kind in _BUILT_IN}
SCORERS: Mapping[str, type[Scorer]] = MappingProxyType(_scorers)
"""Scorers by name: the built-in ones, then those of plugins."""
WEIGHTS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        DEFAULT_ROUTER: {"queue": 1.0, "speed": 0.3, "prefix": 0.3, "session": 0.05},
        "latency-aware": {"first-token": 1.0},
        "session-affine": {"queue": 1.0, "session": 1.0},
        "prefix-aware": {"queue": 1.0, "prefix": 1.0},
        "capability-weighted": {"capability": 1.0},
        "workload-balanced": {"backlog": 0.8, "alone": 0.2},
    }
)
"""The weights of the routers that are made of scorers."""
_SUMMARIES: Mapping[str, str] = MappingProxyType(
    {
        DEFAULT_ROUTER: "the emptiest window, or one a little busier that is faster or has the prompt's beginning cached",
        "latency-aware": "shortest expected time to the first token, by measured speeds",
        "session-affine": "the instance that served the session last, while it is little busier than the others",
        "prefix-aware": "the instance with the most of the prompt cached, while it is little busier than the others",
        "capability-weighted": "HeteroServe's weight: measured compute, memory and bandwidth, damped by the queue",
        "workload-balanced": "HexGen-Flow's score: little predicted work in flight, and a short time without load",
    }
)
_classes: dict[str, Callable[[], Router]] = {kind.name: kind for kind in (LeastLoaded, RoundRobin, CapacityProportional)}
_routers: dict[str, Any] = {**dict.fromkeys(WEIGHTS, ScoredRouter), **_classes}
ROUTERS: Mapping[str, Any] = MappingProxyType(_routers)
"""The class of each router, by name: the built-in ones, then those of plugins."""


def add_router(name: str, router: Any) -> None:
    """Adds a plugin's router; called only at the start of a process (`hmas.controller.config.plugins`).

    Raises:
        PolicyError: It is not a class that can be made without arguments and has a method `rank`.
    """
    if not isinstance(router, type) or not callable(getattr(router, "rank", None)):
        raise PolicyError(f"{router!r} is no router; allowed: a class with the methods of hmas.controller.core.placement.Router")
    router()
    _classes[name] = _routers[name] = router


def add_scorer(name: str, scorer: Any) -> None:
    """Adds a plugin's scorer, likewise.

    Raises:
        PolicyError: It is not a class that can be made without arguments, with this name, a summary and a method `score`.
    """
    named = getattr(scorer, "name", "") == name and getattr(scorer, "summary", "")
    if not isinstance(scorer, type) or not callable(getattr(scorer, "score", None)) or not named:
        raise PolicyError(
            f"{scorer!r} is no scorer named {name!r}; allowed: a class with the members of hmas.controller.core.placement.Scorer"
        )
    scorer()
    _scorers[name] = scorer


def summary_of(name: str) -> str:
    """What a router does, in one line."""
    return _SUMMARIES.get(name) or str(getattr(ROUTERS[name], "summary", "") or (ROUTERS[name].__doc__ or "").partition("\n")[0])


def router_text(name: str, weights: Mapping[str, float] | None = None) -> str:
    """The text of a router with these weights in place of its own; it is not checked."""
    return ":".join([name, *(f"{scorer}={weight:.12g}" for scorer, weight in (weights or {}).items())])


def split_router(text: str) -> tuple[str, dict[str, float]]:
    """The name of a router, and the weights of the text alone: the reverse of `router_text`."""
    name, *parts = text.split(":")
    return name, {scorer: float(value) for scorer, _, value in (part.partition("=") for part in parts)}


def read_router(text: str) -> tuple[str, dict[str, float]]:
    """The name of a router, and its weights: its own ones, changed by those of the text; a weight of 0 leaves a scorer out.

    Raises:
        PolicyError: The router or a scorer is unknown, a weight is out of range, or the router has no weights.
    """
    name, *parts = text.split(":")
    if name not in ROUTERS:
        raise PolicyError(f"router {name!r} is unknown; allowed: {', '.join(ROUTERS)}")
    if parts and name not in WEIGHTS:
        raise PolicyError(f"router {name!r} is not made of scorers and has no weights; those with weights: {', '.join(WEIGHTS)}")
    weights = dict(WEIGHTS.get(name, {}))
    for part in parts:
        scorer, _, value = part.partition("=")
        if scorer not in SCORERS:
            raise PolicyError(f"router {name!r}: scorer {scorer!r} is unknown; allowed: {', '.join(SCORERS)}")
        try:
            weights[scorer] = float(value)
        except ValueError:
            weights[scorer] = -1.0
        if not 0.0 <= weights[scorer] <= WEIGHT_MOST:
            raise PolicyError(f"router {name!r}: weight of {scorer!r} is {value!r}; allowed: 0 to {WEIGHT_MOST:g}")
    weights = {scorer: weight for scorer, weight in weights.items() if weight > 0.0}
    if name in WEIGHTS and not weights:
        raise PolicyError(f"router {name!r}: every weight is 0; allowed: one or more above 0")
    return name, weights


def make_router(text: str) -> Router:
    """Creates a new router.

    Raises:
        PolicyError: As `read_router`.
    """
    name, weights = read_router(text)
    if name in WEIGHTS:
        return ScoredRouter(name, [(SCORERS[scorer](), weight) for scorer, weight in weights.items()])
    return _classes[name]()
