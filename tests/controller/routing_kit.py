"""Instances as routers see them, and requests to rank them for."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from hmas.controller.core.placement import Router
from hmas.controller.core.types import Estimates, Request, Slo
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry


@dataclass
class State:
    name: str
    n_run: int = 10
    in_flight: int = 0
    in_flight_tokens: int = 0
    prefill_tokens: int = 0
    awaiting: int = 0
    kv_committed: float = 0.0
    kv_capacity_tokens: int = 0
    prefill_token_ms: float = 0.0
    decode_token_ms: float = 0.0
    caches_prefixes: bool | None = None

    @property
    def sequences(self) -> int:
        return self.in_flight

    @property
    def routing_window(self) -> float:
        return float(self.n_run)


_numbers = itertools.count()


def entry(
    prompt: int = 1,
    *,
    output: float = 100.0,
    session: str = "",
    blocks: tuple[int, ...] = (),
    tenant: str = "t",
    alone: Mapping[str, tuple[float, float]] | None = None,
) -> QueueEntry:
    number = next(_numbers)
    request = Request(id=f"r{number}", tenant=tenant, model="m", arrival_s=0.0, prompt_tokens=prompt, session=session, blocks=blocks)
    estimates = Estimates(slo=Slo(ttft_ms=1, tpot_ms=1), output_tokens=output, alone=alone or {})
    return QueueEntry(request=request, estimates=estimates, seq=number)


def chosen(router: Router, *states: State, one: QueueEntry | None = None) -> str:
    """The instance that a request goes to, of which the router is told."""
    one = one or entry()
    name = next(iter(router.rank(one, states, 0.0))).instance
    if callable(sent := getattr(router, "sent", None)):
        sent(one, name, 0.0)
    return name
