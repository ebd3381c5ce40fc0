"""The twin as meta uses it: it takes telemetry, chooses what to replay and evaluates the results. Pure; replays may run anywhere.

The twin answers only after it has proved reliable: in its replay of what ran, about as many requests must miss their targets as in reality.
Otherwise it is silent: it gives no answer and reports its error. A remaining disagreement in speed becomes a factor on the fitted step
times.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import ceil

import msgspec
from msgspec.structs import replace

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.twin.candidate_schedule import MOST, CandidateSchedule
from hmas.agents.meta.twin.carried import carried, open_of
from hmas.agents.meta.twin.check import Check, Checks, held_against_truth
from hmas.agents.meta.twin.cost_thresholds import CostThresholds
from hmas.agents.meta.twin.evidence import FRESH_ROUNDS, Evidence, Gain
from hmas.agents.meta.twin.fleet import FleetModel
from hmas.agents.meta.twin.lengths import Lengths
from hmas.agents.meta.twin.past_requests import PastRequest, Traffic, is_possible
from hmas.agents.meta.twin.replay import STRESS, ReplayResult, ReplayScenario, replay, stressed
from hmas.agents.meta.twin.sample import Part, part_of
from hmas.controller.core.messages import Completion, Message, RequestFeatures, SystemSnapshot
from hmas.controller.core.statistics.recent_ids import RecentIds
from hmas.controller.routing.registry import DEFAULT_ROUTER
from hmas.controller.scheduling.policies.robust_edf import RobustEdf
from hmas.controller.scheduling.settings import SchedulerSettings
from hmas.controller.simulation import RequestRecord

LEAD = 0.2
"""Length of the span before the window that only fills the queue, as a share of the window. `TAIL`: share of the window that is repeated
after it as future arrivals, so that the queue does not run dry: otherwise a policy that defers work would seem to get it done."""
TAIL = 0.2
REQUESTS_MIN = 60
"""Fewest requests for an answer."""
AIMED = 0.8
"""Share of the time budget that a replay is planned for: half of the replays take longer than expected."""
REQUESTS_MOST = 10_000
LEAST = 3
"""Fewest candidates per replay, including what runs."""
ENOUGH = 2_000
"""Requests of a window that suffice to tell candidates apart, if a part of the fleet can be replayed."""
START_MS = 0.3
"""Assumed time to replay one request under one candidate before it is measured: that of compiled code, which takes 0.1 with an empty queue
and 0.45 where the TPOT guard has to check many requests."""
MARGIN = 0.01
"""Share of requests that a change has to win."""
CARRIED_MOST = 0.3
"""Largest share of a replay's requests that may come from its initial state."""
BIAS_MOST = 0.12
"""Largest difference between the replayed and the true share of missed targets; above it the twin is silent."""


@dataclass(frozen=True, slots=True)
class TwinSettings:
    """The simulated gateway's settings, and the size of replays.

    Attributes:
        admission, routing: The gateway's own. A candidate may have another router than `routing`.
        window_s: Span of the past that is replayed.
        budget_s: Time for all candidates together; fewer requests are replayed if they would take longer.
    """

    admission: SchedulerSettings
    routing: str = DEFAULT_ROUTER
    window_s: float = 60.0
    budget_s: float = 2.0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay: `candidates`, the first of which runs now, in a `world`.

    Attributes:
        in_force: Whether the first was active all the time, so that its replay can be compared with what happened.
        cost_threshold_then: Cost above which `robust-edf` deferred requests at the start of the window; `world.cost_threshold` is today's.
        stress_replayed: Candidates that are also replayed under more load; none, or what runs and others.
        sparing: Candidates that are replayed even if what runs misses so little that none can be better by the margin; None for all.
    """

    world: ReplayScenario
    candidates: tuple[Candidate, ...]
    in_force: bool
    cost_threshold_then: float = 0.0
    stress_replayed: tuple[Candidate, ...] = ()
    sparing: tuple[Candidate, ...] | None = None

    def answer(self, clock: Callable[[], float] | None = None) -> "Answer":
        """Runs all replays; this is slow. `clock` returns seconds, to measure the cost."""
        start_s = clock() if clock is not None else 0.0
        outlooks: list[ReplayResult] = []
        check = None
        for candidate in self.candidates:
            if outlooks and outlooks[0].good > 1.0 - MARGIN and self.sparing is not None and candidate not in self.sparing:
                continue
            outlook, records = replay(self.world, candidate)
            outlooks.append(outlook)
            if check is None and self.in_force:
                check = held_against_truth(self.world, self._as_it_was(candidate, records))
        more = stressed(self.world) if self.stress_replayed else self.world
        under_stress = tuple(replay(more, candidate)[0] for candidate in self.stress_replayed)
        took_s = clock() - start_s if clock is not None else 0.0
        return Answer(outlooks=tuple(outlooks), check=check, took_s=took_s, requests=len(self.world.asked), stress_replayed=under_stress)

    def _as_it_was(self, candidate: Candidate, records: list[RequestRecord]) -> list[RequestRecord]:
        """Returns a replay to compare with what happened: it starts with the cost threshold known then, if that differs."""
        if candidate.policy != RobustEdf.name or self.cost_threshold_then == self.world.cost_threshold:
            return records
        return replay(replace(self.world, cost_threshold=self.cost_threshold_then), candidate)[1]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question: results of the replayed candidates in order, check of the first, cost, and results under more load."""

    outlooks: tuple[ReplayResult, ...]
    check: Check | None
    took_s: float
    requests: int
    stress_replayed: tuple[ReplayResult, ...] = ()

    @property
    def replayed(self) -> float:
        """Number of replayed requests in all."""
        return self.requests * (len(self.outlooks) + (1.0 + STRESS) * len(self.stress_replayed))


class Twin:
    """The twin; see the module.

    Attributes:
        fleet, traffic, lengths, cost_thresholds, evidence, schedule: See their classes.
        stress_replayed: Results of the last rounds of replays under more load.
        check: The last comparisons of replays with what happened, as many as needed.
        silence: Why the twin gives no answer; empty if it does.
        request_ms: Time that the replay of one request takes, as last measured.
    """

    def __init__(self, fleet: FleetModel, settings: TwinSettings) -> None:
        self.fleet = fleet
        self.traffic = Traffic()
        self.lengths = Lengths()
        self.evidence = Evidence()
        self.stress_replayed = Evidence(rounds=FRESH_ROUNDS)
        self.schedule = CandidateSchedule()
        self.cost_thresholds = CostThresholds()
        self.check: Check | None = None
        self.silence = "no replay has been held against the truth yet"
        self._settings = settings
        self._checks = Checks()
        self._ended = RecentIds(REQUESTS_MOST)
        self.request_ms = START_MS

    def observe(self, message: Message) -> None:
        """Takes telemetry and features."""
        if isinstance(message, SystemSnapshot):
            self.fleet.observe(message)
            self.cost_thresholds.observe(message)
            self.traffic.alive(message.gateway, message.sent_s, message.arrived_total)
        elif isinstance(message, Completion):
            # A message that comes while the agent recovers may be read twice.
            if is_possible(message) and self._ended.add(message.request_id):
                self.fleet.learn(message)
                self.lengths.learn(message)
                self.traffic.completion(message)
        elif isinstance(message, RequestFeatures):
            self.traffic.features(message)

    def candidates(
        self,
        current: Candidate,
        pool: Collection[str],
        proposed: Candidate | None = None,
        *,
        places: int = MOST,
        start: Candidate | None = None,
        routers: Collection[str] = (),
    ) -> tuple[Candidate, ...]:
        """Returns the candidates of the next replay: what runs first, and always `proposed` (see `CandidateSchedule`)."""
        guarded = self._settings.admission.tpot_guard > 0.0
        return self.schedule.choose(current, pool, self.gain, proposed, places=places, guarded=guarded, start=start, routers=routers)

    def places(self, now_s: float, *, routed: bool = False) -> int:
        """Returns how many candidates to replay, few enough that there is time for the whole window.

        `routed`: whether routers may be compared, which takes the whole fleet. A window too short for an overload to show is worse than
        none: a policy that serves all in turn is the last to miss deadlines, and looks best until it does.
        """
        start_s = now_s - self._settings.window_s * (1.0 + LEAD)
        unknown = self.traffic.stand_ins(self.fleet.still_open, now_s)
        asked = len(self.traffic.window(start_s, now_s, REQUESTS_MOST, unknown)) + len(self.traffic.there(start_s, unknown))
        # Of many instances a part is enough, unless it matters which of them gets a request.
        needed = asked if routed else min(asked, max(ENOUGH, asked // max(1, self.fleet.size)))
        return max(LEAST, min(MOST, int(self._affordable / max(1, needed))))

    @property
    def _affordable(self) -> float:
        """Number of requests that the time budget allows, over all candidates."""
        return 1000.0 * AIMED * self._settings.budget_s / (self.request_ms * (1.0 + TAIL))

    def question(
        self,
        candidates: Sequence[Candidate],
        since_s: float,
        now_s: float,
        stress_replayed: Sequence[Candidate] = (),
        sparing: Sequence[Candidate] | None = None,
    ) -> Question | str:
        """Returns what to replay of the recent traffic, or in words why nothing can be replayed.

        Args:
            candidates: The first is what runs.
            since_s: Since when it runs.
            now_s: End of the window.
            stress_replayed: Candidates to replay under more load, including what runs.
            sparing: See `Question`.
        """
        settings = self._settings
        plants, why = self.fleet.plants(now_s, settings.window_s * (1.0 + LEAD))
        if not plants:
            return why
        start_s = now_s - settings.window_s * (1.0 + LEAD)
        fleet, traffic = self.fleet, self.traffic
        unknown = traffic.stand_ins(fleet.still_open, now_s)
        # Requests of models that only an engine serves whose speed is not known are no part of the replay.
        whole = Part(tuple(plants), 1.0)
        asked = whole.of(traffic.window(start_s, now_s, REQUESTS_MOST, unknown))
        if len(asked) < REQUESTS_MIN:
            return f"{len(asked)} requests within {now_s - start_s:.0f} s are too few to replay"
        most = max(REQUESTS_MIN, int(self._affordable / (len(candidates) + (1.0 + STRESS) * len(stress_replayed))))
        newest = int((1.0 - CARRIED_MOST) * most)
        routed = len({one.router for one in candidates}) > 1
        part = part_of(plants, len(asked), len(asked) if routed else newest)
        asked = part.of(asked)[-newest:]
        if not asked:
            return "no request falls to the part of the fleet that could be replayed"
        first_s = asked[0].request.arrival_s
        # The same sample includes the initial state, and repeats the newest part at the end.
        everything, makes_way = traffic.there(now_s, unknown), settings.admission.overdue != "keep"
        opened = whole.of(everything)
        served = len(opened) / max(1, len(everything))
        # Without any known open request there are no stand-ins either: the replay can miss no more than it has.
        overdue = min(round(served * fleet.overdue), len(opened))
        still = open_of(opened, now_s, in_flight=round(served * fleet.in_flight), overdue=overdue, makes_way=makes_way)
        there, left_out = carried(part.of(traffic.there(first_s, unknown)), first_s, most - newest, still)
        from_s = first_s + LEAD / (1.0 + LEAD) * (asked[-1].request.arrival_s - first_s)
        world = ReplayScenario(
            asked=(*self.lengths.draw((*there, *asked, *_once_more(asked, now_s, TAIL * settings.window_s)), still.running),),
            plants=part.plants,
            settings=replace(settings.admission, queue_limit=ceil(part.share * settings.admission.queue_limit)),
            from_s=from_s,
            until_s=now_s,
            cost_threshold=self.cost_thresholds.at(now_s),
            overdue=max(0.0, part.share * overdue - left_out),
            routing=settings.routing,
            weights=fleet.weights,
            drops_share=fleet.meta_aside,
        )
        return Question(
            world=world,
            candidates=tuple(candidates),
            in_force=since_s <= from_s,
            cost_threshold_then=self.cost_thresholds.at(first_s),
            stress_replayed=tuple(stress_replayed),
            sparing=None if sparing is None else tuple(sparing),
        )

    def take(self, answer: Answer) -> None:
        """Takes an answer: its results become evidence, and its check determines whether the twin is reliable."""
        if answer.took_s > 0.0:
            self.request_ms = max(1e-3, 1000.0 * answer.took_s / answer.replayed)
        self.evidence.add(answer.outlooks)
        self.stress_replayed.add(answer.stress_replayed)
        for outlook in answer.outlooks:
            if outlook.cost_thresholds:
                self.cost_thresholds.replayed(outlook.cost_thresholds)
        self.schedule.learn([outlook.candidate for outlook in answer.outlooks], self.gain)
        if answer.check is None:
            return
        slower = self._checks.add(answer.check)
        if slower > 0.0:
            self.fleet.correct(slower)
        check = self._checks.together()
        if check is None:
            return
        self.check = check
        self.silence = ""
        if abs(check.bias) > BIAS_MOST:
            self.silence = (
                f"in its replay of what ran {1.0 - check.replayed:.0%} have missed their targets by now, in truth {1.0 - check.true:.0%}"
            )

    @property
    def caveat(self) -> str:
        """What its replays assume, to be added to a reason; empty for nothing."""
        return f"; {self.fleet.assumed}" if self.fleet.assumed else ""

    def gain(self, one: Candidate, other: Candidate) -> Gain | None:
        """Returns the expected gain of one candidate over another."""
        return self.evidence.gain(one, other)

    def gain_under_stress(self, one: Candidate, other: Candidate) -> Gain | None:
        """Returns the same under more load; None if the last rounds do not show it."""
        found = self.stress_replayed.gain(one, other)
        return found if found is not None and found.error < 1.0 else None


def _once_more(asked: Sequence[PastRequest], now_s: float, span_s: float) -> list[PastRequest]:
    """Repeats the newest span as the arrivals of the next; their ends are unknown."""
    return [
        replace(one, request=replace(one.request, id=f"{one.request.id}+", arrival_s=one.request.arrival_s + span_s), good=None)
        for one in asked
        if one.request.arrival_s >= now_s - span_s
    ]
