"""Samples a gateway's state during a run, through the operators' API."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from hmas.controller.admin.client import AdminClient
from hmas.controller.core.errors import AdminError

EVERY_S = 0.5
EVENTS = 1000
ANSWER_S = 15.0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's state at one moment; `at_s` from the run's start. Sums are over the instances."""

    at_s: float
    queued: int
    in_flight: int
    n_run: int
    token_budget: int
    policy: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of an agent that the gateway applied."""

    at_s: float
    source: str
    kind: str
    subject: str
    before: str
    after: str
    reason: str


class Watcher:
    """Samples one gateway every half second.

    Attributes:
        samples: The samples.
        failures: Errors of calls that the gateway did not answer.
        slowest_s: The longest time that an answer took.
    """

    def __init__(self, admin_url: str, start_s: float, now_s: Callable[[], float]) -> None:
        self._client = AdminClient(admin_url, timeout_s=ANSWER_S)
        self._start_s = start_s
        self._now_s = now_s
        self.slowest_s = 0.0
        self.samples: list[Sample] = []
        self.failures: list[str] = []

    async def run(self) -> None:
        """Samples until cancelled; if the gateway does not answer, records it without raising."""
        while True:
            asked_s = self._now_s()
            try:
                status = await asyncio.to_thread(self._client.status)
                self.samples.append(sample_of(status, self._now_s() - self._start_s))
            except AdminError as error:
                self.failures.append(str(error))
            self.slowest_s = max(self.slowest_s, self._now_s() - asked_s)
            await asyncio.sleep(EVERY_S)

    async def finish(self, task: "asyncio.Task[None]") -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
        """Stops sampling; returns the last status and all events.

        Raises:
            AdminError: The gateway does not answer.
        """
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(self._client.status), await asyncio.to_thread(self._client.events, EVENTS)


def sample_of(status: Mapping[str, Any], at_s: float) -> Sample:
    """The figures of a status page that the timeline shows."""
    instances = status["instances"]
    return Sample(
        at_s=round(at_s, 2),
        queued=status["queue"]["queued"],
        in_flight=sum(item["in_flight"] for item in instances),
        n_run=sum(item["n_run"]["value"] or 0 for item in instances),
        token_budget=sum(item["token_budget"]["value"] or 0 for item in instances),
        policy=status["policy"]["name"],
    )


def decisions_of(events: Sequence[Mapping[str, Any]], start_s: float) -> list[Decision]:
    """Agents' decisions, oldest first: events whose source is an agent, not the configuration or an operator."""
    return [
        Decision(
            at_s=round(event["sent_s"] - start_s, 2),
            source=event["source"],
            kind=event["kind"],
            subject=event["subject"],
            before=event.get("before", ""),
            after=event.get("after", ""),
            reason=event.get("reason", ""),
        )
        for event in events
        if event["source"] in {"meta", "statera", "bypass"}
    ]


def broken_sums(status: Mapping[str, Any], submitted: int) -> str:
    """Errors in the gateway's own counts after a run, as text; empty if there are none."""
    counts = status["counts"]
    ended = sum(counts["ended"].values())
    if not counts["conserved"] or counts["arrived"] != ended + counts["queued"] + counts["running"]:
        return f"the gateway's sums do not come out: {counts}"
    if counts["arrived"] != submitted:
        return f"the gateway counted {counts['arrived']} arrivals, the client sent {submitted}"
    if counts["queued"] or counts["running"]:
        return f"{counts['queued']} queued and {counts['running']} running requests are left after the run"
    return ""
