"""Stands in for one agent on a real bus and answers absurdly."""

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.core.messages import (
    REQUESTS,
    ControlAction,
    LengthBound,
    Message,
    MetaDecision,
    RequestCost,
    RequestFeatures,
    RequestNotice,
)
from hmas.controller.core.types import TaskType
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.scheduling.policies.registry import POLICIES

EVERY_S = 0.1
"""How often statera and meta speak: ten times as often as the real ones."""
STALE_S = 3600.0
STALE_REQUESTS = 20
DAY_MS = 86_400_000.0
NUMBERS: Mapping[str, float] = {"0": 0.0, "1": 1.0, "1e9": 1e9, "nan": math.nan}
MODES = (*NUMBERS, "tight", "stale", "oscillating")
"""How it answers. A number: that, in one field after another, the others being plausible. `tight`: all fields at once at what restricts
most of all that the gateway accepts. `stale`: the same with an old date, and about earlier requests. `oscillating`: from there to the other
extreme and back with each message."""


class Field(NamedTuple):
    """Values of a field: plausible, restricting as much as is accepted, and restricting as little as is accepted."""

    plausible: float
    tight: float
    loose: float


FIELDS: Mapping[str, Mapping[str, Field]] = {
    "perception": {
        "ttft_slo_ms": Field(4000.0, 1.0, DAY_MS),
        "tpot_slo_ms": Field(70.0, 1.0, DAY_MS),
        "importance": Field(0.75, 0.5, 1.0),
        "output_tokens": Field(100.0, 1e7, 0.0),
        "output_tokens_p90": Field(300.0, 1e7, 1e7),
    },
    "prediction": {
        "ttft_ms": Field(300.0, DAY_MS, 0.0),
        "tpot_ms": Field(30.0, DAY_MS, 0.0),
        "alone_ttft_ms": Field(300.0, DAY_MS, 0.001),
        "alone_tpot_ms": Field(30.0, DAY_MS, 0.001),
        "output_tokens": Field(100.0, 1e7, 0.0),
    },
    "statera": {
        "n_run": Field(64, 1, 1e9),
        "token_budget": Field(0, 1, 1e9),
        "guard": Field(1.0, 1e-9, 1.0),
        "add_tokens": Field(100.0, 1e9, -1e9),
    },
    "meta": {"n_run": Field(0, 1, 1e9), "tpot_guard": Field(0.5, 1e-9, 1.0)},
}


class Absurd:
    """One agent.

    Attributes:
        mode: One of `MODES`; may change at any time.
        agent: Its name.
        said: Messages so far.
    """

    def __init__(self, agent: str, bus_url: str, instances: Sequence[str]) -> None:
        self.mode = MODES[0]
        self.said = 0
        self.agent = agent
        self._bus = RedisBus(bus_url)
        self._instances = tuple(instances)
        self._notices: deque[RequestNotice] = deque(maxlen=STALE_REQUESTS)
        self._clock = SystemClock()

    async def run(self) -> None:
        """Answers until it is cancelled."""
        await self._bus.start()
        try:
            if self.agent in ("perception", "prediction"):
                await self._answer()
            while True:
                for instance in self._instances:
                    self._say(instance=instance)
                await asyncio.sleep(EVERY_S)
        finally:
            await self._bus.close()

    async def _answer(self) -> None:
        async for deliveries in self._bus.follow([REQUESTS], block_ms=100):
            for delivery in deliveries:
                if isinstance(delivery.message, RequestNotice):
                    self._notices.append(delivery.message)
                    self._say(self._notices[0] if self.mode == "stale" else delivery.message)

    def _say(self, notice: RequestNotice | None = None, instance: str = "") -> None:
        sent_s = self._clock.now_s() - (STALE_S if self.mode == "stale" else 0.0)
        self._bus.post(self._message(self._values(), sent_s, notice, instance))
        self.said += 1

    def _values(self) -> dict[str, Any]:
        fields = FIELDS[self.agent]
        if self.mode in NUMBERS:
            found = {name: field.plausible for name, field in fields.items()}
            found[list(fields)[self.said // len(self._instances) % len(fields)]] = NUMBERS[self.mode]
        elif self.mode == "oscillating" and self.said // len(self._instances) % 2:
            found = {name: field.loose for name, field in fields.items()}
        else:
            found = {name: field.tight for name, field in fields.items()}
        whole = ("n_run", "token_budget")
        return {name: int(value) if name in whole and math.isfinite(value) else value for name, value in found.items()}

    def _message(self, values: dict[str, Any], sent_s: float, notice: RequestNotice | None, instance: str) -> Message:
        if self.agent == "statera":
            bounds = [LengthBound(prompt_tokens_below=0, add_tokens=values.pop("add_tokens"), samples=1000)]
            return ControlAction(sent_s=sent_s, instance=instance, length_bounds=bounds, reason="absurd", **values)
        if self.agent == "meta":
            policies = sorted(POLICIES)
            return MetaDecision(
                sent_s=sent_s,
                decision_id=f"absurd-{self.said}",
                policy=policies[self.said % len(policies)] if self.mode == "oscillating" else policies[-1],
                previous="fcfs",
                parameters={"tpot_guard": values["tpot_guard"]},
                n_run=values["n_run"],
                bypass=self.mode == "oscillating" and self.said % 3 == 0,
                reason="absurd",
            )
        assert notice is not None
        if self.agent == "prediction":
            tokens = values.pop("output_tokens")
            by_instance = {name: dict.fromkeys(self._instances, value) for name, value in values.items()}
            return RequestCost(request_id=notice.request_id, sent_s=sent_s, output_tokens=tokens, **by_instance)
        return RequestFeatures(
            request_id=notice.request_id,
            sent_s=sent_s,
            tenant=notice.tenant,
            model=notice.model,
            prompt_tokens=notice.prompt_tokens,
            task_type=list(TaskType)[self.said % len(TaskType)],
            confidence=1.0,
            source="absurd",
            **values,
        )
