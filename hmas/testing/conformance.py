"""The requirements on every queueing policy, as checks for the author of a policy: `assert_conforms(MyPolicy)`."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from hmas.controller.core.errors import PolicyError, SchedulingError
from hmas.controller.core.types import Controls, Estimates, OutcomeKind, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.policies.registry import BUILT_IN, check_parameters, own_parameters, register
from hmas.controller.scheduling.policy_base.policy_check import check_policy
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry, QueuePolicy
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.testing.queue_script import START_S, NonConformance, QueueScript, make_entry, make_estimates

Check = TypeVar("Check", bound=Callable[..., None])
STEPS = 300
SEEDS = 2
STARVES = "starves"
QUEUED = 600
PATIENCE_POPS = 2_500
PATIENCE_STEP_S = 10.0


@dataclass(frozen=True)
class Subject:
    """The policy under test: class, non-default parameters, first seed, and number of waiting requests at a switch."""

    policy: type[QueuePolicy]
    parameters: Mapping[str, float] = field(default_factory=dict)
    seed: int = 1
    queued: int = QUEUED

    def make(self) -> QueuePolicy:
        """Makes an empty policy."""
        return self.policy({**self.policy.default_parameters, **own_parameters(self.parameters)})

    def fail(self, words: str) -> NonConformance:
        """Makes the error that names the policy."""
        return NonConformance(f"{self.policy.__qualname__}: {words}")


def contract(subject: Subject) -> None:
    """The policy has every member of the contract, and does nothing while it is empty."""
    check_policy(subject.policy)


def conservation(subject: Subject) -> None:
    """Under any calls each request is popped once, or removed once by id, and no request is lost or invented."""
    for seed in range(subject.seed, subject.seed + SEEDS):
        QueueScript(subject.make(), seed).run(STEPS)


def undo_pop(subject: Subject) -> None:
    """Popping some requests and putting them back, last first, does not change the order."""
    for seed in range(subject.seed, subject.seed + SEEDS):
        plain, probed = QueueScript(subject.make(), seed), QueueScript(subject.make(), seed, probing=True)
        plain.run(STEPS)
        probed.run(STEPS)
        for step, (one, other) in enumerate(zip(plain.order, probed.order, strict=False)):
            if one != other:
                raise subject.fail(f"after pops that were put back, pop {step} gives {other} instead of {one} (seed {seed})")


def rebuild(subject: Subject) -> None:
    """`load` accepts the requests of a queue in order of arrival and loses none; requests popped by another policy may end in it."""
    rng = np.random.default_rng(subject.seed)
    entries = [make_entry(number, START_S + number, rng) for number in range(60)]
    policy = subject.make()
    policy.load(entries[10:], START_S + 100.0)
    for entry in entries[:10]:
        policy.on_finished(entry, 7, START_S + 101.0)
    out = []
    while (popped := policy.pop(START_S + 102.0)) is not None:
        out.append(popped.seq)
    if sorted(out) != list(range(10, 60)):
        raise subject.fail(f"load took 50 and pop gave {len(out)}, {len(set(out))} of them different")


def switches(subject: Subject) -> None:
    """Switches to and from every policy of the pool under load lose or duplicate no request. Adds the policy to the pool."""
    register(subject.policy)
    scheduler = Scheduler(
        settings=SchedulerSettings(queue_limit=2 * QUEUED, overdue="keep", tpot_guard=0.0),
        instances=[InstanceSpec(name="i0", capacity_n_run=4, kv_capacity_tokens=10**9)],
        router=make_router("least-loaded"),
        policy=subject.policy.name,
        parameters=subject.parameters,
    )
    scheduler.set_controls("i0", Controls(n_run=4))
    rng = np.random.default_rng(subject.seed)
    now_s, number, ended = START_S, 0, 0
    others = [policy.name for policy in BUILT_IN if policy is not subject.policy]
    for name in [name for other in others for name in (other, subject.policy.name)]:
        for _ in range(4 if number else subject.queued):
            entry = make_entry(number, now_s, rng)
            number += 1
            scheduler.submit(entry.request, entry.estimates, now_s, entry.weight)
        scheduler.dispatch(now_s)
        scheduler.revise(scheduler.queued_ids()[0], make_estimates(rng), now_s)
        scheduler.set_policy(name, now_s, subject.parameters if name == subject.policy.name else None)
        for request_id in scheduler.running_ids()[:3]:
            scheduler.end(request_id, OutcomeKind.COMPLETED, now_s, 5)
            ended += 1
        scheduler.dispatch(now_s)
        now_s += 1.0
        try:
            scheduler.check_conservation()
        except SchedulingError as error:
            raise subject.fail(f"a switch to {name} loses or doubles requests: {error}") from error
    while scheduler.running_ids():
        for request_id in scheduler.running_ids():
            scheduler.end(request_id, OutcomeKind.COMPLETED, now_s, 5)
            ended += 1
        scheduler.dispatch(now_s)
    if ended != number:
        raise subject.fail(f"of {number} requests {ended} ended after {2 * len(others)} switches")


def determinism(subject: Subject) -> None:
    """The same calls give the same order. For other hash seeds, compare `order_of` from processes with another PYTHONHASHSEED."""
    if order_of(subject.policy, subject.parameters, subject.seed) != order_of(subject.policy, subject.parameters, subject.seed):
        raise subject.fail(f"the same calls give another order (seed {subject.seed})")


def starvation(subject: Subject) -> None:
    """The worst-placed request is popped while better-placed ones keep the queue full; skipped for a policy that declares starvation.

    For 25,000 seconds, one request arrives and one is popped every 10 seconds. An arriving request is short, urgent and of a better
    priority, belongs to one of a few other tenants, and is the first of a new session.
    """
    if subject.policy.starvation.startswith(STARVES):
        return
    policy = subject.make()
    for number in range(4):
        policy.push(_rival(number, START_S), START_S)
    victim = _victim(4, START_S)
    policy.push(victim, START_S)
    for number in range(5, PATIENCE_POPS):
        now_s = START_S + PATIENCE_STEP_S * number
        policy.push(_rival(number, now_s), now_s)
        popped = policy.pop(now_s)
        if popped is victim:
            return
        if popped is not None:
            policy.on_finished(popped, 100, now_s)
    raise subject.fail(f'a request is passed {PATIENCE_POPS} times in a row; starvation says: "{subject.policy.starvation}"')


CHECKS: Mapping[str, Callable[[Subject], None]] = MappingProxyType(
    {check.__name__: check for check in (contract, conservation, undo_pop, rebuild, switches, determinism, starvation)}
)
"""Every check by name; each raises `PolicyError`."""


@dataclass(frozen=True)
class Result:
    """The result of one check: the check's name, its requirement in a sentence, and the failure, empty if it passed."""

    check: str
    meaning: str
    trouble: str


def try_out(policy: type[QueuePolicy], parameters: Mapping[str, float] | None = None, *, seed: int = 1) -> list[Result]:
    """Runs every check on a policy and returns all results; if the contract check fails, returns only that."""

    def run(check: Callable[[Subject], None]) -> None:
        check(Subject(policy, parameters or {}, seed))
        if check is contract:
            register(policy)
            check_parameters(policy.name, parameters)

    return results_of(CHECKS, run, contract)


def results_of(checks: Mapping[str, Check], run: Callable[[Check], None], first: Check) -> list[Result]:
    """Runs checks and returns all results; if `first` fails, returns only that."""
    results: list[Result] = []
    for name, check in checks.items():
        trouble = ""
        try:
            run(check)
        except PolicyError as error:
            trouble = str(error)
        except Exception as error:  # noqa: BLE001  a stranger's code, under test: whatever it raises is what was found
            trouble = f"{type(error).__name__} raised: {error}"
        results.append(Result(name, (check.__doc__ or "").partition("\n")[0], trouble))
        if trouble and check is first:
            break
    return results


def assert_conforms(policy: type[QueuePolicy], parameters: Mapping[str, float] | None = None, *, seed: int = 1) -> None:
    """Runs every check on a policy, in a second or so.

    Args:
        policy: The class; it is added to the pool of this process.
        parameters: Non-default parameters.
        seed: Seed of the scripts; another seed gives other requests.

    Raises:
        NonConformance: A check failed; the error names every failed check with the failure, the seed and the step.
    """
    failed = [f"{result.check}: {result.trouble}" for result in try_out(policy, parameters, seed=seed) if result.trouble]
    if failed:
        raise NonConformance("\n".join(failed))


def order_of(policy: type[QueuePolicy], parameters: Mapping[str, float] | None = None, seed: int = 1) -> str:
    """A digest of the order in which a policy pops the requests of a script: the same in every process, for any hash seed.

    Raises:
        PolicyError: The policy loses or duplicates requests.
    """
    script = QueueScript(Subject(policy, parameters or {}, seed).make(), seed, probing=True)
    script.run(STEPS)
    return hashlib.sha256(" ".join(script.order).encode()).hexdigest()


def _rival(number: int, now_s: float) -> QueueEntry:
    """A request that every discipline prefers."""
    request = Request(
        id=f"rival{number:06d}",
        tenant=f"rival{number % 5}",
        model="m",
        arrival_s=now_s,
        prompt_tokens=500,
        priority=-10,
        session=f"s{number}",
    )
    estimates = Estimates(slo=Slo(ttft_ms=100.0, tpot_ms=10.0), output_tokens=100.0, ttft_ms=200.0, tpot_ms=30.0)
    return QueueEntry(request=request, estimates=estimates, seq=number)


def _victim(number: int, now_s: float) -> QueueEntry:
    """A request that every discipline puts last: long, with a late deadline, and without any preference."""
    request = Request(id="victim", tenant="victim", model="m", arrival_s=now_s, prompt_tokens=4000, session="old")
    estimates = Estimates(slo=Slo(ttft_ms=60_000.0, tpot_ms=200.0), output_tokens=1000.0, ttft_ms=2000.0, tpot_ms=30.0)
    return QueueEntry(request=request, estimates=estimates, seq=number)
