"""The twin as meta asks it: hears telemetry, says what to replay and what came of it. Pure; the replays themselves run wherever asked.

It speaks only where it has shown that it may: in the replay of what ran about as many requests must have missed their targets as really
have, else it is silent and says by how much it is off. What is left of a disagreement in speed is taken over as a stretch of the fitted
steps.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

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
from hmas.agents.meta.twin.replay import ReplayResult, ReplayScenario, replay
from hmas.agents.meta.twin.sample import part_of
from hmas.agents.meta.twin.stress import PRESSURE, stress_replayed
from hmas.controller.core.messages import Completion, ControlAction, Message, RequestFeatures, SystemSnapshot
from hmas.controller.scheduling.policies.robust_edf import RobustEdf
from hmas.controller.scheduling.settings import SchedulerSettings
from hmas.controller.simulation import RequestRecord

LEAD = 0.2
"""Share of the window, before it, that only fills the queue. `TAIL`: of what comes after it, as it came last, so that nobody's end is eased
by a queue that runs dry: who puts off work would seem to get it done."""
TAIL = 0.2
REQUESTS_MIN = 60
"""Requests without which nothing is said."""
AIMED = 0.8
"""Share of the time allowed that a replay is made for: half of them take longer than expected."""
REQUESTS_MOST = 10_000
LEAST = 3
"""Candidates that are looked at in any case, what runs among them."""
ENOUGH = 2_000
"""Requests of a window that tell candidates apart, where they may be those of a part of the fleet."""
START_MS = 0.3
"""Time to replay one request under one candidate, before it has been measured: compiled code's, 0.1 with nothing waiting, 0.45 where the
TPOT guard has to look at many."""
MARGIN = 0.01
"""Share of requests that a change has to win."""
CARRIED_MOST = 0.3
"""Share of what is replayed that may have been there when it began."""
BIAS_MOST = 0.12
"""Difference between the replayed and the true share that missed their targets beyond which the twin is silent."""


@dataclass(frozen=True, slots=True)
class TwinSettings:
    """How the gateway works that is to be simulated, and how much of it.

    Attributes:
        admission, routing, weights: The gateway's own.
        window_s: Span of the past that is replayed.
        budget_s: Time that all candidates together may take; fewer requests are replayed where it would be more.
    """

    admission: SchedulerSettings
    routing: str = "least-loaded"
    weights: Mapping[str, float] = field(default_factory=dict)
    window_s: float = 60.0
    budget_s: float = 2.0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay: `candidates`, the first of which runs now, in a `world`.

    Attributes:
        in_force: Whether the first was in force all the while, so that its replay can be held against the truth.
        cost_threshold_then: Cost above which `robust-edf` put requests behind when the window began; `world.cost_threshold` is today's.
        stress_replayed: Those that are replayed under more load, too; none, or what runs and others.
        sparing: Those of the candidates that are replayed even where what runs misses next to nothing, so that none can be better by the
            margin; None for all.
    """

    world: ReplayScenario
    candidates: tuple[Candidate, ...]
    in_force: bool
    cost_threshold_then: float = 0.0
    stress_replayed: tuple[Candidate, ...] = ()
    sparing: tuple[Candidate, ...] | None = None

    def answer(self, clock: Callable[[], float] | None = None) -> "Answer":
        """Replays them all; what takes long. `clock` tells seconds, to learn what it costs."""
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
        more = stress_replayed(self.world) if self.stress_replayed else self.world
        under_pressure = tuple(replay(more, candidate)[0] for candidate in self.stress_replayed)
        took_s = clock() - start_s if clock is not None else 0.0
        return Answer(outlooks=tuple(outlooks), check=check, took_s=took_s, requests=len(self.world.asked), stress_replayed=under_pressure)

    def _as_it_was(self, candidate: Candidate, records: list[RequestRecord]) -> list[RequestRecord]:
        """A replay to hold against the truth: begun with what was known then, where that makes a difference."""
        if candidate.policy != RobustEdf.name or self.cost_threshold_then == self.world.cost_threshold:
            return records
        return replay(replace(self.world, cost_threshold=self.cost_threshold_then), candidate)[1]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a question: outlooks of those that were replayed, in the candidates' order, the check of the first, what it cost, and
    outlooks under more load.
    """

    outlooks: tuple[ReplayResult, ...]
    check: Check | None
    took_s: float
    requests: int
    stress_replayed: tuple[ReplayResult, ...] = ()

    @property
    def replayed(self) -> float:
        """Requests replayed in all."""
        return self.requests * (len(self.outlooks) + (1.0 + PRESSURE) * len(self.stress_replayed))


class Twin:
    """See the module.

    Attributes:
        fleet, traffic, lengths, cost_thresholds, evidence, menu: See their classes.
        stress_replayed: What replays under more load have said in the last rounds.
        check: The last replays that were held against the truth, as many as it takes.
        silence: Why the twin does not speak; empty where it does.
    """

    def __init__(self, fleet: FleetModel, settings: TwinSettings) -> None:
        self.fleet = fleet
        self.traffic = Traffic()
        self.lengths = Lengths()
        self.evidence = Evidence()
        self.stress_replayed = Evidence(rounds=FRESH_ROUNDS)
        self.menu = CandidateSchedule()
        self.cost_thresholds = CostThresholds()
        self.check: Check | None = None
        self.silence = "no replay has been held against the truth yet"
        self._settings = settings
        self._checks = Checks()
        self._request_ms = START_MS

    def hear(self, message: Message) -> None:
        """Takes in telemetry, features and statera's actions."""
        if isinstance(message, SystemSnapshot):
            self.fleet.observe(message)
            self.cost_thresholds.observe(message)
            self.traffic.alive(message.gateway, message.sent_s)
        elif isinstance(message, ControlAction):
            self.fleet.regulated(message)
        elif isinstance(message, Completion):
            if is_possible(message):
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
    ) -> tuple[Candidate, ...]:
        """What to look at this time, what runs first and `proposed` in any case (see `CandidateSchedule`)."""
        guarded = self._settings.admission.tpot_guard > 0.0
        return self.menu.choose(current, pool, self.gain, proposed, places=places, guarded=guarded, start=start)

    def places(self, now_s: float) -> int:
        """How many candidates to look at this time: so few, if need be, that there is time for the whole window.

        A window in which an overload has no time to show is worse than none: whoever serves all in turn is the last to come too late, and
        looks best as long as nobody has.
        """
        start_s = now_s - self._settings.window_s * (1.0 + LEAD)
        asked = len(self.traffic.window(start_s, now_s, REQUESTS_MOST)) + len(self.traffic.there(start_s))
        # Of many instances a part will do.
        needed = min(asked, max(ENOUGH, asked // max(1, self.fleet.size)))
        return max(LEAST, min(MOST, int(self._affordable / max(1, needed))))

    @property
    def _affordable(self) -> float:
        """Requests that there is time to replay, under all candidates together."""
        return 1000.0 * AIMED * self._settings.budget_s / (self._request_ms * (1.0 + TAIL))

    def question(
        self,
        candidates: Sequence[Candidate],
        since_s: float,
        now_s: float,
        stress_replayed: Sequence[Candidate] = (),
        sparing: Sequence[Candidate] | None = None,
    ) -> Question | str:
        """What to replay of late; in words why nothing can be, where nothing can.

        Args:
            candidates: The first is what runs.
            since_s: Since when it does.
            now_s: End of the window.
            stress_replayed: What to replay under more load, what runs among it.
            sparing: See `Question`.
        """
        settings = self._settings
        plants, why = self.fleet.plants(now_s, settings.window_s * (1.0 + LEAD))
        if not plants:
            return why
        start_s = now_s - settings.window_s * (1.0 + LEAD)
        asked = self.traffic.window(start_s, now_s, REQUESTS_MOST)
        if len(asked) < REQUESTS_MIN:
            return f"{len(asked)} requests within {now_s - start_s:.0f} s are too few to replay"
        most = max(REQUESTS_MIN, int(self._affordable / (len(candidates) + (1.0 + PRESSURE) * len(stress_replayed))))
        newest = int((1.0 - CARRIED_MOST) * most)
        part = part_of(plants, len(asked), newest)
        asked = part.of(asked)[-newest:]
        if not asked:
            return "no request falls to the part of the fleet that could be replayed"
        first_s = asked[0].request.arrival_s
        # What was there when it began comes with it, in the same sample, and what comes last comes once more.
        fleet, traffic = self.fleet, self.traffic
        makes_way = settings.admission.overdue != "keep"
        still = open_of(traffic.there(now_s), now_s, in_flight=fleet.in_flight, overdue=fleet.overdue, makes_way=makes_way)
        there, left_out = carried(part.of(traffic.there(first_s)), first_s, most - newest, still)
        from_s = first_s + LEAD / (1.0 + LEAD) * (asked[-1].request.arrival_s - first_s)
        world = ReplayScenario(
            asked=(*self.lengths.draw((*there, *asked, *_once_more(asked, now_s, TAIL * settings.window_s)), still.running),),
            plants=part.plants,
            settings=settings.admission,
            from_s=from_s,
            until_s=now_s,
            cost_threshold=self.cost_thresholds.at(now_s),
            overdue=max(0.0, part.share * fleet.overdue - left_out),
            routing=settings.routing,
            weights=settings.weights,
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
        """An answer has come: it becomes evidence, and says how far the twin may be believed."""
        if answer.took_s > 0.0:
            self._request_ms = max(1e-3, 1000.0 * answer.took_s / answer.replayed)
        self.evidence.add(answer.outlooks)
        self.stress_replayed.add(answer.stress_replayed)
        for outlook in answer.outlooks:
            if outlook.cost_thresholds:
                self.cost_thresholds.replayed(outlook.cost_thresholds)
        self.menu.learn([outlook.candidate for outlook in answer.outlooks], self.gain)
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

    def gain(self, one: Candidate, other: Candidate) -> Gain | None:
        """How much better one is expected to do than another."""
        return self.evidence.gain(one, other)

    def gain_under_pressure(self, one: Candidate, other: Candidate) -> Gain | None:
        """The same if more came; None where the last rounds have not shown it."""
        found = self.stress_replayed.gain(one, other)
        return found if found is not None and found.error < 1.0 else None


def _once_more(asked: Sequence[PastRequest], now_s: float, span_s: float) -> list[PastRequest]:
    """What came in the newest span, as what will come in the next: its ends are unknown."""
    return [
        replace(one, request=replace(one.request, id=f"{one.request.id}+", arrival_s=one.request.arrival_s + span_s), good=None)
        for one in asked
        if one.request.arrival_s >= now_s - span_s
    ]
