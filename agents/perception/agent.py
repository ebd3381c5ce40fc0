"""Connects perception to the bus: notices in, features out. Completions teach it lengths; it switches models while it runs."""

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from hmas.agents.model_store.comparison import Comparison
from hmas.agents.model_store.promotion import Promotion
from hmas.agents.model_store.store import ModelStore, ModelWatch
from hmas.agents.perception.loading import Loaded, Loader
from hmas.agents.perception.model import PerceptionModel
from hmas.agents.perception.readers import KIND, STORE, Opened
from hmas.agents.perception.reading import PromptView, Reader, Reading, view_of
from hmas.agents.perception.shadow import Shadow
from hmas.agents.perception.tagging import RulesReader
from hmas.agents.perception.tally import Tally
from hmas.agents.runtime.work import Deferred, Pace
from hmas.controller.bus.base import Bus
from hmas.controller.config.derived import models_dir
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ModelError
from hmas.controller.core.messages import (
    NOTICE_FRESH_S,
    REQUESTS,
    TELEMETRY,
    Completion,
    Event,
    Message,
    ModelReport,
    RequestNotice,
    Severity,
)
from hmas.controller.runtime.process import resident_bytes

REPLAY = 5_000
"""Newest telemetry entries read at start to learn lengths again."""
RECENT = 2_000
"""Newest completions from which a newly activated model learns first."""
REPORT_EVERY_S = 10.0
REST_S = 5.0
LONGEST_REST_S = 60.0
"""Length of the pause for a reader that failed; it doubles from the first value up to the second."""
UNKNOWN_MORE = 0.05
"""A model is not promoted automatically if it leaves this much more of the requests unknown, however good its lengths are."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The result of reading a batch: readings, the reader's name, the duration, and why the wanted reader failed, if it did."""

    readings: list[Reading]
    by: str
    took_ms: float
    failure: str = ""


class PerceptionAgent:
    """Binds `PerceptionModel` to its streams; see `hmas.agents.runtime.shell.Agent`.

    Attributes:
        model: The active model.
        shadow: The model in shadow mode; None for none.
    """

    name = "perception"
    streams: tuple[str, ...] = (REQUESTS,)
    follows: tuple[str, ...] = (TELEMETRY,)
    tick_s = 1.0
    max_age_s: Mapping[type[Message], float] = MappingProxyType({RequestNotice: NOTICE_FRESH_S})

    def __init__(self, config: Config) -> None:
        self._settings = config.agents
        self._store = ModelStore(models_dir(config))
        self._loader = Loader(config, self._store)
        self._watch = ModelWatch(self._store, KIND)
        self.model: PerceptionModel = self._loader.model()
        self.shadow: Shadow | None = None
        self._have: Opened | None = None
        self._rules = RulesReader()
        self._recent: deque[Completion] = deque(maxlen=RECENT)
        self._events: list[Message] = []
        self._fallback = ""
        self._failing = ""
        self._pace = Pace()
        self._rest_s = REST_S
        self._rests_until_s = float("-inf")
        self._reported_s = float("-inf")
        is_auto = config.agents.model_promotion == "auto" and self._loader.source.follows_store
        self._promotion = Promotion(self._store, KIND, "length error", is_auto=is_auto)

    async def recover(self, bus: Bus, now_s: float) -> None:
        """Loads its model, which learns lengths from the end of the telemetry stream."""
        completions = [message for message in await bus.latest(TELEMETRY, REPLAY) if isinstance(message, Completion)]
        self._recent.extend(completions)
        self._watch.note()
        self._take(await asyncio.to_thread(self._loader.load, None, None, completions), now_s)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message] | Deferred[_Read]:
        """Learns from completions, then reads all notices as one batch: on the event loop if that is brief, else in the thread."""
        for message in messages:
            if isinstance(message, Completion):
                self._learn(message)
        notices = [message for message in messages if isinstance(message, RequestNotice)]
        if not notices:
            return self._told()
        reader = self._rules if now_s < self._rests_until_s else self.model.reader
        views = [view_of(notice) for notice in notices]
        reading = self._reading(reader, views)
        if not inspect.iscoroutinefunction(reading) and self._pace.is_brief(len(views)):
            return self._answer(notices, reading(), now_s)
        return Deferred(reading, partial(self._answer, notices))

    def on_tick(self, now_s: float) -> list[Message]:
        """Posts events, and every few seconds a report on each model."""
        if now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            self._look_at_shadow(now_s)
            self._events += self._reports(now_s)
        return self._told()

    def beside(self, now_s: float) -> Deferred[Any] | None:
        """Loads another model when the store's choice changes, promotes a better one, or reads in shadow mode."""
        if self._watch.changed(now_s):
            return Deferred(partial(self._loader.load, self._have, self.shadow, list(self._recent)), self._swap)
        shadow = self.shadow
        if shadow is None:
            return None
        if settle := self._promotion.due():
            return Deferred(settle, lambda _none, _at_s: [])
        return shadow.work()

    def _learn(self, completion: Completion) -> None:
        self._recent.append(completion)
        found = self.model.settle(completion)
        if self.shadow is not None:
            self.shadow.learn(completion, found)

    def _reading(self, reader: Reader, views: list[PromptView]) -> Callable[[], Any]:
        """Returns the slow part: reading the views, by the rules if the reader fails."""
        read_async = getattr(reader, "read_async", None)
        if read_async is None:
            return lambda: self._read(reader, views)

        async def asked() -> _Read:
            start_s = time.perf_counter()
            try:
                return self._checked(await read_async(views), reader.name, len(views), start_s)
            except Exception as error:  # noqa: BLE001 - whatever a model's fault, requests are answered
                return self._by_rules(views, error)

        return asked

    def _read(self, reader: Reader, views: list[PromptView]) -> _Read:
        start_s = time.perf_counter()
        try:
            return self._checked(reader.read(views), reader.name, len(views), start_s)
        except Exception as error:  # noqa: BLE001 - as above
            return self._by_rules(views, error)

    def _checked(self, readings: list[Reading], by: str, count: int, start_s: float) -> _Read:
        if len(readings) != count:
            raise ModelError(f"{by} gave {len(readings)} readings of {count} prompts; allowed: one each")
        return _Read(readings, by, 1000.0 * (time.perf_counter() - start_s))

    def _by_rules(self, views: list[PromptView], error: Exception) -> _Read:
        start_s = time.perf_counter()
        readings = self._rules.read(views)
        return _Read(readings, self._rules.name, 1000.0 * (time.perf_counter() - start_s), str(error) or type(error).__name__)

    def _answer(self, notices: Sequence[RequestNotice], read: _Read, now_s: float) -> list[Message]:
        """Runs the fast part: returns features, and events about the reader."""
        self._look_at_reader(read, now_s)
        self.model.tally.batch(len(notices), read.took_ms)
        # Readers may skip prompts without text, and the rules stand in for a reader: neither tells how long it takes.
        texts = sum(bool(notice.excerpt.strip()) for notice in notices)
        if texts and read.by == self.model.reader.name:
            self._pace.took(texts, read.took_ms)
        features = self.model.conclude(notices, read.readings, now_s, source=read.by)
        if self.shadow is not None:
            self.shadow.offer(notices, features)
        return [*features, *self._told()]

    def _look_at_reader(self, read: _Read, now_s: float) -> None:
        if read.failure:
            self._rests_until_s = now_s + self._rest_s
            self._rest_s = min(LONGEST_REST_S, 2.0 * self._rest_s)
            if not self._failing:
                self._note(now_s, "model_fallback", self._in_force(), self._rules.name, read.failure, severity="warning")
            self._failing = read.failure
        elif self._failing and read.by == self.model.reader.name and any(reading != Reading() for reading in read.readings):
            self._note(now_s, "model_restored", self._rules.name, self._in_force(), "it answers again")
            self._failing, self._rest_s = "", REST_S

    def _swap(self, loaded: Loaded, now_s: float) -> list[Message]:
        self._take(loaded, now_s)
        return self._told()

    def _take(self, loaded: Loaded, now_s: float) -> None:
        """Activates what was loaded. If loading failed, the active model stays and an event reports the error."""
        before = self._have.name if self._have is not None else ""
        # The same server is opened again whenever the choice is written.
        another = not loaded.error and loaded.opened is not None and loaded.opened.name != before
        self._fallback, self._promotion.chosen = loaded.error, loaded.wanted
        if loaded.error:
            kind, now = ("model_refused", before) if before else ("model_fallback", self._rules.name)
            self._note(now_s, kind, loaded.wanted or STORE, now, loaded.error, severity="error" if before else "warning")
            if not before:
                self._have = Opened(name=self._rules.name, reader=self._rules, lengths=None)
        elif loaded.opened is not None:
            self._failing = ""
            self._pace = Pace()
            self._rests_until_s, self._rest_s = float("-inf"), REST_S
            self._have = loaded.opened
            if loaded.model is not None:
                self.model = loaded.model
            else:
                self.model.reader = loaded.opened.reader
                if another:
                    self.model.recount()
            if before and another:
                self._note(now_s, "model_changed", before, loaded.opened.name, "chosen in the store")
        if loaded.shadow_error:
            self._note(now_s, "model_refused", "shadow", "", loaded.shadow_error, severity="error")
        shadow = loaded.shadow
        before_shadow, after = (one.name if one is not None else "" for one in (self.shadow, shadow))
        if before_shadow != after:
            self._note(now_s, "model_shadow", before_shadow, after, "chosen in the store")
            self._promotion.restart()
        elif another and shadow is not None:
            # It was compared with the model that has gone. It keeps what it has learnt, and the comparison begins again.
            comparison = Comparison(margin=self._settings.model_shadow_margin, least=self._settings.model_shadow_completions)
            shadow = Shadow(shadow.name, shadow.model, comparison)
            self._promotion.restart()
        self.shadow = shadow

    def _look_at_shadow(self, now_s: float) -> None:
        shadow = self.shadow
        if shadow is None:
            return
        verdict = shadow.verdict()
        mine, theirs = (figures.get("unknown_share", 0.0) for figures in (self.model.tally.figures(), shadow.figures()))
        if theirs > mine + UNKNOWN_MORE:
            verdict = msgspec.structs.replace(verdict, better=False)
        if event := self._promotion.judge(self._in_force(), shadow.name, verdict):
            self._note(now_s, *event)

    def _reports(self, now_s: float) -> list[Message]:
        found: list[Message] = [self._report(now_s, self._in_force(), self.model.tally, self.model.figures())]
        if self.shadow is not None:
            found.append(self._report(now_s, self.shadow.name, self.shadow.model.tally, self.shadow.figures(), role="shadow"))
        return found

    def _report(
        self, now_s: float, model: str, tally: Tally, figures: dict[str, float], *, role: Literal["active", "shadow"] = "active"
    ) -> ModelReport:
        return ModelReport(
            sent_s=now_s,
            agent=self.name,
            model=model,
            role=role,
            requests=tally.requests,
            scored=tally.scored,
            figures=figures,
            coverage=tally.coverage(),
            fallback=self._failing or self._fallback if role == "active" else "",
            rss_bytes=resident_bytes(),
        )

    def _in_force(self) -> str:
        """Name of the active model in the store."""
        return self._have.name if self._have is not None else self.model.reader.name

    def _note(self, now_s: float, kind: str, before: str, after: str, reason: str, *, severity: Severity = "info") -> None:
        self._events.append(
            Event(
                sent_s=now_s,
                source=self.name,
                kind=kind,
                subject="perception model",
                before=before,
                after=after,
                reason=reason,
                severity=severity,
            )
        )

    def _told(self) -> list[Message]:
        told, self._events = self._events, []
        return told


def make_agent(config: Config) -> PerceptionAgent:
    """Builds the agent; it loads its model when it recovers."""
    return PerceptionAgent(config)
