"""Drives sessions through a simulation: issues each call at its time with its prefix."""

from collections.abc import Iterator
from typing import NamedTuple

from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import OutcomeKind, Request, Slo
from hmas.controller.scheduling.results import Ended
from hmas.controller.simulation import Arrival
from hmas.workloads.sessions import Session, SessionPlan
from hmas.workloads.table import Believe, prior

SESSION_HASH_TOKENS = 64
"""Tokens of one block in a session's prompts, small enough for tool answers of a few hundred tokens."""
_SOURCE_IDS = 1 << 48
_SESSION_IDS = 1 << 24


class SessionEnd(NamedTuple):
    """The result of one session: when it began and ended, how many calls ended, and whether all were answered."""

    number: int
    source: str
    start_s: float
    end_s: float
    calls: int
    completed: bool


def place_of(request_id: str) -> tuple[int, int]:
    """The number of the session and the place in it of the call that has this id."""
    number, place = request_id[1:].split("-")
    return int(number), int(place)


class _Live:
    """A session in progress."""

    __slots__ = ("before", "begin_s", "blocks", "chain", "done", "due_s", "intact", "number", "open", "session", "stage")

    def __init__(self, number: int, session: Session, begin_s: float) -> None:
        self.number = number
        self.session = session
        self.begin_s = begin_s
        self.stage = 0
        self.open = 0
        self.done = 0
        self.due_s = begin_s
        self.intact = True
        # Block ids of the prompt with which the next one may begin, and of the last prompt of the previous stage.
        self.chain: tuple[int, ...] = ()
        self.before: tuple[int, ...] = ()
        self.blocks = 0


class SessionDriver:
    """Issues a plan's calls: `simulate(driver.arrivals(), ..., followups=driver.followups)`. Each run needs a new one.

    A call that is refused, is dropped or fails ends its session, once its stage has ended.

    Attributes:
        ended: Ended sessions, in the order in which they ended.
    """

    def __init__(self, plan: SessionPlan, *, model: str, estimate: Believe | None = None) -> None:
        """Makes a driver for one run.

        Args:
            plan: The sessions.
            model: The model that every call names.
            estimate: Estimates of a call at its arrival; by default the prior of an empty history with the declared SLO.
        """
        self._plan = plan
        self._model = model
        self._believe = estimate or prior()
        self._live: dict[int, _Live] = {}
        sources = sorted({session.source for session in plan.sessions})
        self._source_ids = {source: _SOURCE_IDS * (place + 1) for place, source in enumerate(sources)}
        self.ended: list[SessionEnd] = []

    def unsent(self, *, whole: bool) -> Iterator[Request]:
        """The calls that were never issued because an earlier call of their session was not answered, with the time of that.

        Args:
            whole: Whether the run was completed. Only then do the sessions count that have not ended.
        """
        cut = [(end.number, end.calls, end.end_s) for end in self.ended]
        if whole:
            cut += [(live.number, sum(call.stage <= live.stage for call in live.session.calls), live.due_s) for live in self._live.values()]
        for number, issued, at_s in cut:
            for place in range(issued, len(self._plan.session(number).calls)):
                yield self._request(number, place, at_s)

    def arrivals(self) -> Iterator[Arrival]:
        """The first calls of every session, by time."""
        for number, (at_s, which) in enumerate(zip(self._plan.at_s.tolist(), self._plan.which.tolist(), strict=True)):
            live = self._live[number] = _Live(number, self._plan.sessions[which], at_s)
            yield from self._issue(live, at_s)

    def followups(self, ended: Ended, now_s: float) -> list[Arrival]:
        """The calls that follow the end of one call: those of the next stage, after the pauses."""
        number, place = place_of(ended.entry.request.id)
        live = self._live[number]
        call = live.session.calls[place]
        live.open -= 1
        live.done += 1
        live.due_s = max(live.due_s, now_s + call.pause_s)
        live.intact = live.intact and ended.kind is OutcomeKind.COMPLETED
        if live.open:
            return []
        live.stage += 1
        if live.intact and live.stage <= live.session.calls[-1].stage:
            return list(self._issue(live, max(now_s, live.due_s)))
        del self._live[number]
        whole = live.intact and live.done == len(live.session.calls)
        self.ended.append(SessionEnd(number, live.session.source, live.begin_s, now_s, live.done, whole))
        return []

    def _issue(self, live: _Live, at_s: float) -> Iterator[Arrival]:
        places = [place for place, call in enumerate(live.session.calls) if call.stage == live.stage]
        # All calls of a stage count as open before the first one is issued.
        live.open = len(places)
        live.before = live.chain
        for place in places:
            yield self._arrival(live, place, at_s)

    def _arrival(self, live: _Live, place: int, at_s: float) -> Arrival:
        request = self._request(live.number, place, at_s)
        return Arrival(
            request=request,
            estimate=self._believe,
            output_tokens=self._plan.lengths(live.session.calls[place])[1],
            block_hashes=self._blocks(live, place, request.prompt_tokens),
            hash_tokens=SESSION_HASH_TOKENS,
        )

    def _request(self, number: int, place: int, at_s: float) -> Request:
        plan, options, session = self._plan, self._plan.options, self._plan.session(number)
        call = session.calls[place]
        prompt, _, cap = plan.lengths(call)
        slo = slo_for(call.task, float(plan.importance[number]), options.slo_scale)
        return Request(
            id=f"s{number:07d}-{place:04d}",
            tenant=session.source,
            model=self._model,
            arrival_s=at_s,
            prompt_tokens=prompt,
            max_output_tokens=cap,
            declared_slo=Slo(ttft_ms=options.ttft_ms or slo.ttft_ms, tpot_ms=options.tpot_ms or slo.tpot_ms),
            session=str(number),
        )

    def _blocks(self, live: _Live, place: int, prompt: int) -> tuple[int, ...]:
        """Ids of the prompt's whole blocks: shared ones, then new ones."""
        wanted = prompt // SESSION_HASH_TOKENS
        shared = min(wanted, live.session.calls[place].prefix_tokens // SESSION_HASH_TOKENS)
        if place == 0:
            first = self._source_ids[live.session.source]
            kept = tuple(range(first, first + shared))
        else:
            kept = live.before[:shared]
        fresh = _SESSION_IDS * (live.number + 1) + live.blocks
        live.blocks += wanted - len(kept)
        live.chain = (*kept, *range(fresh, fresh + wanted - len(kept)))
        return live.chain
