"""The requirements on every router and scorer, as checks for their author: `assert_router_conforms(MyRouter)`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from hmas.controller.core.errors import PolicyError
from hmas.controller.core.placement import Choice, InstanceState, Router, Scorer
from hmas.controller.core.types import Controls, OutcomeKind
from hmas.controller.routing.registry import add_router, add_scorer
from hmas.controller.routing.scored import ScoredRouter
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.testing.conformance import Result, results_of
from hmas.testing.queue_script import START_S, NonConformance, make_entry

SIZES = (1, 2, 8, 100)
STEPS = 200
NUMBERS = ("n_run", "in_flight", "in_flight_tokens", "prefill_tokens", "awaiting", "kv_capacity_tokens")


@dataclass
class State:
    """An instance as a router sees it."""

    name: str
    n_run: int = 1
    in_flight: int = 0
    sequences: int = 0
    in_flight_tokens: int = 0
    prefill_tokens: int = 0
    awaiting: int = 0
    kv_committed: float = 0.0
    routing_window: float = 1.0
    kv_capacity_tokens: int = 0
    prefill_token_ms: float = 0.0
    decode_token_ms: float = 0.0
    caches_prefixes: bool | None = None


def contract(kind: Any, _seed: int) -> None:
    """It is a class that can be made without arguments, with a name and the method `rank` (a scorer: `score`)."""
    name = getattr(kind, "name", "")
    if not isinstance(name, str) or not name:
        raise PolicyError(f"its name is {name!r}; allowed: a text, as its entry point")
    (add_scorer if _is_scorer(kind) else add_router)(name, kind)


def scores(kind: Any, seed: int) -> None:
    """A scorer gives one score from 0 to 1 for each instance, whatever they are like; a router has nothing to pass here."""
    if not _is_scorer(kind):
        return
    scorer: Scorer = kind()
    rng = np.random.default_rng(seed)
    for step in range(STEPS):
        states, entry = _states(rng, SIZES[step % len(SIZES)]), make_entry(step, START_S + step, rng)
        given = scorer.score(entry, states, START_S + step)
        if (given and len(given) != len(states)) or not all(0.0 <= score <= 1.0 for score in given):
            raise NonConformance(
                f"step {step}: scores of {len(states)} instances are {given[:8]}; allowed: one from 0 to 1 for each, or none"
            )
        if callable(sent := getattr(scorer, "sent", None)):
            sent(entry, states[0].name, START_S + step)


def ranking(kind: Any, seed: int) -> None:
    """A ranking names instances that it was given, each at most once, with a reason, and changes nothing that it was given."""
    router = _router(kind)
    rng = np.random.default_rng(seed)
    for step in range(STEPS):
        states, entry = _states(rng, SIZES[step % len(SIZES)]), make_entry(step, START_S + step, rng)
        before = [State(**vars(state)) for state in states]
        choices: list[Any] = list(router.rank(entry, states, START_S + step))
        names = [choice.instance for choice in choices]
        known = {state.name for state in states}
        if len(set(names)) != len(names) or not set(names) <= known:
            raise NonConformance(f"step {step}: the ranking of {sorted(known)[:8]} is {names[:8]}; allowed: each of them at most once")
        if not all(isinstance(choice, Choice) and choice.reason for choice in choices):
            raise NonConformance(f"step {step}: a choice has no reason; allowed: a short text")
        if states != before:
            raise NonConformance(f"step {step}: it changes the instances that it is given")


def determinism(kind: Any, seed: int) -> None:
    """The same calls give the same rankings: it reads no clock and draws no random numbers."""
    if _rankings(kind, seed) != _rankings(kind, seed):
        raise NonConformance(f"the same calls give another ranking (seed {seed})")


def serving(kind: Any, seed: int) -> None:
    """In a scheduler, with hooks, retries and an instance that comes and goes, no ranking fails and every request is served."""
    names = [f"i{place}" for place in range(4)]
    scheduler = Scheduler(
        settings=SchedulerSettings(overdue="keep", tpot_guard=0.0),
        instances=[InstanceSpec(name=name, capacity_n_run=4, kv_capacity_tokens=20_000) for name in names],
        router=_router(kind),
        policy="fcfs",
    )
    for name in names:
        scheduler.set_controls(name, Controls(n_run=4))
    rng = np.random.default_rng(seed)
    ended = 0
    for step in range(STEPS):
        now_s = START_S + step
        entry = make_entry(step, now_s, rng)
        scheduler.submit(entry.request, entry.estimates, now_s)
        scheduler.set_draining(names[step // 20 % 4], step % 20 < 10)
        scheduler.dispatch(now_s)
        for place, request_id in enumerate(scheduler.running_ids()[:2]):
            if place or not scheduler.retry(request_id, now_s):
                scheduler.end(request_id, OutcomeKind.COMPLETED, now_s, 5, 100)
                ended += 1
    for name in names:
        scheduler.set_draining(name, draining=False)
    while scheduler.dispatch(START_S + STEPS) or scheduler.running_ids():
        for request_id in scheduler.running_ids():
            scheduler.end(request_id, OutcomeKind.COMPLETED, START_S + STEPS, 5)
            ended += 1
    scheduler.check_conservation()
    faults, fault = scheduler.router_fault
    if faults:
        raise NonConformance(f"{faults} rankings failed: {fault}")
    if ended != STEPS:
        raise NonConformance(f"of {STEPS} requests {ended} were served; the others wait although every instance is free")


ROUTER_CHECKS: Mapping[str, Callable[[Any, int], None]] = MappingProxyType(
    {check.__name__: check for check in (contract, scores, ranking, determinism, serving)}
)
"""Every check by name; each raises `PolicyError`."""


def try_router(kind: Any, *, seed: int = 1) -> list[Result]:
    """Runs every check on a router or a scorer and returns all results; if the contract check fails, returns only that."""
    return results_of(ROUTER_CHECKS, lambda check: check(kind, seed), contract)


def assert_router_conforms(kind: Any, *, seed: int = 1) -> None:
    """Runs every check on a router or a scorer. Adds it to the registry of this process.

    Raises:
        NonConformance: A check failed; the error names every failed check with the failure.
    """
    failed = [f"{result.check}: {result.trouble}" for result in try_router(kind, seed=seed) if result.trouble]
    if failed:
        raise NonConformance("\n".join(failed))


def _is_scorer(kind: Any) -> bool:
    return isinstance(kind, type) and callable(getattr(kind, "score", None))


def _router(kind: Any) -> Router:
    router: Router = ScoredRouter("under-test", [(kind(), 1.0)]) if _is_scorer(kind) else kind()
    return router


def _states(rng: np.random.Generator, count: int) -> Sequence[State]:
    states = []
    for place in range(count):
        drawn = {name: int(value) for name, value in zip(NUMBERS, rng.integers(0, 5000, len(NUMBERS)), strict=True)}
        drawn["n_run"] = 1 + drawn["n_run"] % 256
        caches = (None, True, False)[place % 3]
        state = State(name=f"i{place:03d}", kv_committed=float(rng.uniform(0, 1)), caches_prefixes=caches, **drawn)
        # Every third one has not been measured.
        state.prefill_token_ms, state.decode_token_ms = float(rng.uniform(0, 2)) * (place % 3 > 0), float(rng.uniform(0, 80))
        state.sequences, state.routing_window = state.in_flight, float(state.n_run)
        states.append(state)
    return states


def _rankings(kind: Any, seed: int) -> list[list[str]]:
    router = _router(kind)
    rng = np.random.default_rng(seed)
    found: list[list[str]] = []
    for step in range(STEPS):
        states: Sequence[InstanceState] = _states(rng, SIZES[step % len(SIZES)])
        entry: QueueEntry = make_entry(step, START_S + step, rng)
        found.append([choice.instance for choice in router.rank(entry, states, START_S + step)])
        if found[-1] and callable(sent := getattr(router, "sent", None)):
            sent(entry, found[-1][0], START_S + step)
    return found
