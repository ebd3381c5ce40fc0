"""Temporary faults of agents in a simulated run: dead, hung, restarted, late, or with nonsense as input. Deterministic."""

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from hmas.controller.core.errors import ConfigError
from hmas.controller.core.messages import Completion, ControlAction, LongView, MetaDecision, ShortView
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.engines.sim.model import EngineModel
from hmas.loadgen.streams import stream
from hmas.planning.case import Case
from hmas.planning.steering import AgentSteering

Steered = Literal["qos", "statera", "meta"]
FaultKind = Literal["dead", "hung", "restart", "late", "garbage"]
Heard = Literal["completions", "snapshots", "views"]
M = TypeVar("M", bound=msgspec.Struct)
HELD_MOST = 20_000
"""Most messages that are kept for a hung agent, as in a bounded stream."""
NONSENSE = (0.0, 1.0, -1.0, 1e-9, 1e9)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of one agent, with times in seconds of the workload.

    Attributes:
        kind: `dead`: the agent receives and sends nothing. `hung`: likewise, and afterwards it processes the backlog. `restart`: it dies at
            the beginning and returns without state at the end. `late`: its messages arrive `by_s` later. `garbage`: it receives
            schema-valid nonsense.
    """

    agent: Steered
    kind: FaultKind
    from_s: Annotated[float, Meta(ge=0)]
    until_s: Annotated[float, Meta(gt=0)]
    by_s: Annotated[float, Meta(ge=0)] = 30.0

    def holds(self, now_s: float) -> bool:
        """Whether the fault is active."""
        return self.from_s <= now_s < self.until_s


class Faults:
    """Applies faults to the messages that agents receive and send.

    Args:
        faults: The faults; those of one agent may not overlap.
        seed: Seed of the nonsense.

    Raises:
        ConfigError: Two faults of one agent overlap, or one ends before it begins.
    """

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        ordered = sorted(faults, key=lambda one: (one.agent, one.from_s))
        for before, after in itertools.pairwise(ordered):
            if before.agent == after.agent and after.from_s < before.until_s:
                raise ConfigError(f"faults of {after.agent} overlap at {after.from_s:g} s; allowed: one at a time")
        for one in ordered:
            if one.until_s <= one.from_s:
                raise ConfigError(f"a fault of {one.agent} lasts from {one.from_s:g} to {one.until_s:g} s; allowed: an end after the begin")
        self._faults = ordered
        self._random = stream(seed, "nonsense")
        self._held: dict[tuple[Steered, Heard], deque[Any]] = {}
        self._delayed: deque[tuple[float, Any]] = deque()
        self._restarted: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._faults)

    def heard(self, agent: Steered, what: Heard, messages: Sequence[M], now_s: float) -> list[M]:
        """The messages that an agent receives, of those sent to it on one of its streams."""
        fault = self._of(agent, now_s)
        held = self._held.setdefault((agent, what), deque(maxlen=HELD_MOST))
        if fault is None or fault.kind == "late":
            given = [*held, *messages]
            held.clear()
            return given
        if fault.kind == "hung":
            held.extend(messages)
            return []
        if fault.kind == "garbage":
            return [self._nonsense(message) for message in messages]
        return []

    def said(self, agent: Steered, messages: Sequence[M], now_s: float) -> list[M]:
        """The agent's messages that arrive at once; `due` returns delayed ones at their time."""
        fault = self._of(agent, now_s)
        if fault is None or fault.kind != "late":
            return list(messages)
        self._delayed.extend((now_s + fault.by_s, message) for message in messages)
        return []

    def due(self, now_s: float) -> list[Any]:
        """Delayed messages that arrive now."""
        found = [message for at_s, message in self._delayed if at_s <= now_s]
        self._delayed = deque((at_s, message) for at_s, message in self._delayed if at_s > now_s)
        return found

    def restarts(self, now_s: float) -> list[Steered]:
        """Agents that restart now without state; each once."""
        found: list[Steered] = []
        for number, one in enumerate(self._faults):
            if one.kind == "restart" and now_s >= one.until_s and number not in self._restarted:
                self._restarted.add(number)
                found.append(one.agent)
        return found

    def _of(self, agent: Steered, now_s: float) -> Fault | None:
        return next((one for one in self._faults if one.agent == agent and one.holds(now_s)), None)

    def _nonsense(self, message: M) -> M:
        """The message with nonsense figures of the types of its schema; times and names are unchanged."""
        changes = {
            name: self._figure(value)
            for name in message.__struct_fields__
            if not name.endswith("_s") and isinstance(value := getattr(message, name), int | float) and not isinstance(value, bool)
        }
        return msgspec.structs.replace(message, **changes)

    def _figure(self, value: float) -> float:
        drawn = float(self._random.choice(np.asarray(NONSENSE)))
        return int(drawn) if isinstance(value, int) else drawn


class FaultySteering(AgentSteering):
    """The agents of a case, with faults; their silence matters too, so directives are resolved in every cycle."""

    def __init__(self, case: Case, faults: Sequence[Fault]) -> None:
        super().__init__(case)
        self._faults = Faults(faults, case.seed)

    def complete(self, completion: Completion, now_s: float) -> None:
        for heard in self._faults.heard("qos", "completions", [completion], now_s):
            self.qos.complete(heard, now_s)
        if self.twin is not None:
            for heard in self._faults.heard("meta", "completions", [completion], now_s):
                self.twin.observe(heard)

    def cycle(self, now_s: float, scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> None:
        faults, snapshot = self._faults, scheduler.snapshot(now_s, "simulation")
        for agent in faults.restarts(now_s):
            self.start(agent)
        if self.twin is not None:
            for heard in faults.heard("meta", "snapshots", [snapshot], now_s):
                self.twin.observe(heard)
        views: list[ShortView | LongView] = []
        for heard in faults.heard("qos", "snapshots", [snapshot], now_s):
            views += self.qos.observe(heard, now_s)
        late = faults.due(now_s)
        views = [*(one for one in late if isinstance(one, ShortView | LongView)), *faults.said("qos", views, now_s)]
        actions = faults.said("statera", self.actions_on(faults.heard("statera", "views", views, now_s), now_s), now_s)
        decisions = faults.said("meta", self.decisions_on(faults.heard("meta", "views", views, now_s), now_s), now_s)
        said = [*(one for one in late if isinstance(one, ControlAction | MetaDecision)), *actions, *decisions]
        self.apply(said, scheduler, engines, now_s)
