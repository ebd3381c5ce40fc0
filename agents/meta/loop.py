"""Meta with what its twin stands on: views for the model, traffic and fleet for replays. The same live and in simulation. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agents.meta.fleet import FleetModel
from agents.meta.model import MetaModel
from agents.meta.replay import Outlook
from agents.meta.traffic import Traffic
from agents.meta.twin import REQUESTS_MIN, Question
from controller.core.messages import Completion, LongView, Message, MetaDecision, RequestFeatures, ShortView, SystemSnapshot
from controller.scheduling.outcomes import SchedulerSettings

LEAD = 0.2
"""Share of the window that only fills the queue."""
REQUESTS_MOST = 4_000
START_MS = 0.4
"""Time to replay one request under one candidate, before it has been measured."""


@dataclass(frozen=True, slots=True)
class TwinSettings:
    """How the gateway works that is to be simulated, and how much of it.

    Attributes:
        admission, routing, weights: The gateway's own.
        models: Models by instance, where it does not serve all.
        window_s: Span of the past that is replayed.
        budget_s: Time that all candidates together may take; fewer requests are replayed where it would be more.
    """

    admission: SchedulerSettings
    routing: str = "least-loaded"
    weights: Mapping[str, float] = field(default_factory=dict)
    models: Mapping[str, frozenset[str]] = field(default_factory=dict)
    window_s: float = 60.0
    budget_s: float = 2.0


class MetaLoop:
    """Hands views to the model and answers what it asks the twin.

    Attributes:
        model, fleet, traffic: See their classes.
    """

    def __init__(self, model: MetaModel, fleet: FleetModel, settings: TwinSettings) -> None:
        self.model = model
        self.fleet = fleet
        self.traffic = Traffic()
        self._settings = settings
        self._request_ms = START_MS

    def hear(self, message: Message) -> None:
        """Takes in telemetry and features, for the twin."""
        if isinstance(message, SystemSnapshot):
            self.fleet.observe(message)
        elif isinstance(message, Completion):
            self.fleet.learn(message)
            self.traffic.completion(message)
        elif isinstance(message, RequestFeatures):
            self.traffic.features(message)

    def on_view(self, view: ShortView | LongView, now_s: float) -> list[MetaDecision]:
        """Decisions that a view leads to at once; what the model asks the twin stands in `model.asking`."""
        return self.model.on_short(view, now_s) if isinstance(view, ShortView) else self.model.on_long(view, now_s)

    def question(self, now_s: float) -> Question | str:
        """What `model.asking` comes to; in words why it cannot be answered where it cannot."""
        asking, settings = self.model.asking, self._settings
        if asking is None:
            return "nothing is asked"
        plants, why = self.fleet.plants(now_s, settings.models)
        if not plants:
            return why
        most = int(1000.0 * settings.budget_s / (self._request_ms * len(asking.candidates)))
        start_s = now_s - settings.window_s * (1.0 + LEAD)
        asked = self.traffic.window(start_s, now_s, min(REQUESTS_MOST, max(most, REQUESTS_MIN)))
        if len(asked) < REQUESTS_MIN:
            return f"{len(asked)} requests within {now_s - start_s:.0f} s are too few to replay"
        return Question(
            candidates=asking.candidates,
            asked=tuple(asked),
            plants=tuple(plants),
            settings=settings.admission,
            lead_s=LEAD / (1.0 + LEAD) * (asked[-1].arrival_s - asked[0].arrival_s),
            routing=settings.routing,
            weights=settings.weights,
        )

    def think(self, now_s: float) -> list[MetaDecision]:
        """Asks the twin and has its answer at once: for a world whose time stands still meanwhile."""
        if self.model.asking is None:
            return []
        question = self.question(now_s)
        return self.model.on_silence(question, now_s) if isinstance(question, str) else self.model.on_outlooks(question.answer(), now_s)

    def answered(self, question: Question, outlooks: Sequence[Outlook], took_s: float, now_s: float) -> list[MetaDecision]:
        """The twin has answered in `took_s`, which says how much it may be asked next time."""
        each_ms = 1000.0 * took_s / (len(question.asked) * len(question.candidates))
        self._request_ms = max(1e-3, each_ms)
        return self.model.on_outlooks(outlooks, now_s)
