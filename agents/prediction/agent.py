"""Connects prediction to the bus: features in, costs out. Snapshots and completions keep it current; it switches models while it runs."""

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from hmas.agents.model_store.promotion import Promotion
from hmas.agents.model_store.ranges import figures_of
from hmas.agents.model_store.store import SHIPPED as SHIPPED_NAME
from hmas.agents.model_store.store import ModelStore, ModelWatch
from hmas.agents.prediction.asking import Asked, Numbers
from hmas.agents.prediction.features import UNKNOWN
from hmas.agents.prediction.model import PredictionModel
from hmas.agents.prediction.prior import prior_of
from hmas.agents.prediction.refitting import Refitted, Shadow, due, refit_into
from hmas.agents.prediction.regressor import KIND, SHIPPED, CatBoostRegressor, load_regressor
from hmas.agents.runtime.work import Deferred, Pace
from hmas.controller.bus.base import Bus
from hmas.controller.config.derived import models_dir
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ModelError
from hmas.controller.core.messages import (
    FEATURES,
    NOTICE_FRESH_S,
    TELEMETRY,
    Completion,
    Event,
    Message,
    ModelReport,
    RequestFeatures,
    Severity,
    SystemSnapshot,
)
from hmas.controller.core.statistics.step_fit import Step
from hmas.controller.runtime.process import resident_bytes

log = logging.getLogger(__name__)

REPLAY = 5_000
"""Newest telemetry entries read at start to learn speeds and loads again."""
REPORT_EVERY_S = 10.0
REPORTED_INSTANCES = 32
"""Most instances whose own errors a report contains."""
DRIFTS_TOLD = 20
"""Most drift events per tick."""
PRIORS_KEPT = 64
"""Profiles whose speed is remembered."""
GIVEN_UP = 10
"""A shadow that is not better after this many times the completions of a comparison is removed."""


@dataclass(frozen=True, slots=True)
class _Gone:
    """The trees' result for each piece, and the time it took."""

    log_ratios: list[Numbers]
    took_s: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of reading the store: names and models, or the errors."""

    name: str
    regressor: CatBoostRegressor | None
    error: str
    shadow_name: str = ""
    shadow: CatBoostRegressor | None = None
    shadow_error: str = ""


class PredictionAgent:
    """Binds `PredictionModel` to its streams; see `hmas.agents.runtime.shell.Agent`."""

    name = "prediction"
    streams: tuple[str, ...] = (FEATURES,)
    follows: tuple[str, ...] = (TELEMETRY,)
    tick_s = 1.0
    max_age_s: Mapping[type[Message], float] = MappingProxyType({RequestFeatures: NOTICE_FRESH_S})

    def __init__(self, config: Config) -> None:
        self._settings = config.agents
        self._store = ModelStore(models_dir(config))
        self._watch = ModelWatch(self._store, KIND)
        self._events: list[Message] = []
        self._priors: dict[str, tuple[Step | None, str]] = {}
        auto, most = config.agents.model_promotion == "auto", GIVEN_UP * config.agents.model_shadow_completions
        self._promotion = Promotion(self._store, KIND, "error", is_auto=auto, pairs_most=most)
        self._watch.note()
        loaded = self._load()
        self.model = PredictionModel(loaded.regressor, prior_named=self._prior_named)
        self.shadow: Shadow | None = None
        self._have = loaded.name
        self._fallback = ""
        self._take_shadow(loaded, float("nan"))
        if loaded.error:
            self._fall_back(loaded, float("nan"))
        self._refitted_at = 0
        self._reported_s = float("-inf")
        self._took_s = 0.0
        self.pace = Pace()
        self._batches = 0

    async def recover(self, bus: Bus, now_s: float) -> None:  # noqa: ARG002 - part of the protocol
        """Replays the end of the telemetry stream."""
        for message in await bus.latest(TELEMETRY, REPLAY):
            self._follow(message)

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message] | Deferred[_Gone]:
        """Updates the instances' state, then answers all requests at once: on the event loop if that is brief, else in the thread."""
        for message in messages:
            self._follow(message)
        start_s = time.perf_counter()
        asked = self.model.ask([message for message in messages if isinstance(message, RequestFeatures)], now_s)
        if not asked:
            return []
        self._took_s += time.perf_counter() - start_s
        if self.pace.is_brief(sum(len(one.rows) for one in asked)):
            return self._answer(asked, _go_through(asked), now_s)
        return Deferred(partial(_go_through, asked), partial(self._answer, asked))

    def on_tick(self, now_s: float) -> list[Message]:
        """Posts drifts and model changes, and every few seconds a report on each model."""
        for drift in self.model.drifts()[:DRIFTS_TOLD]:
            left = drift.path == "formula"
            self._note(
                now_s,
                "prediction_drift" if left else "prediction_recovered",
                "model" if left else "formula",
                drift.path,
                f"{drift.target} error {drift.error:.2f} of {drift.instance} has {'left' if left else 'come back into'} its band of "
                f"{drift.limit:.2f} (mean absolute log of actual over predicted)",
                severity="warning" if left else "info",
                subject=f"{drift.instance}/{drift.target}",
            )
        if now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            self._look_at_shadow(now_s)
            self._events += self._reports(now_s)
        told, self._events = self._events, []
        return [_dated(message, now_s) for message in told]

    def beside(self, now_s: float) -> Deferred[Any] | None:
        """Loads another model when the store's choice changes, promotes a better one, or trains on from telemetry."""
        if not self._settings.prediction_model and self._watch.changed(now_s):
            return Deferred(self._load, self._swap)
        if settle := self._promotion.due():
            return Deferred(settle, lambda _none, _at_s: [])
        active = self._active()
        if active is None or self.shadow is not None or not self._refits():
            return None
        experience = self.model.experience
        if not due(experience.total, self._refitted_at, self._settings.prediction_refit_completions):
            return None
        self._refitted_at = experience.total
        return Deferred(partial(refit_into, self._store, active, experience.table()), self._told_refit)

    def _answer(self, asked: Sequence[Asked], gone: _Gone, now_s: float) -> list[Message]:
        self.pace.took(sum(len(one.rows) for one in asked), 1e3 * gone.took_s)
        start_s = time.perf_counter()
        costs = [cost for one, said in zip(asked, gone.log_ratios, strict=True) for cost in self.model.answer(one, said, now_s)]
        self._took_s += gone.took_s + time.perf_counter() - start_s
        self._batches += 1
        return [*costs]

    def _follow(self, message: Message) -> None:
        if isinstance(message, SystemSnapshot):
            self.model.observe(message)
        elif isinstance(message, Completion):
            self.model.learn(message)

    def _active(self) -> CatBoostRegressor | None:
        found = self.model.regressor
        return found if isinstance(found, CatBoostRegressor) else None

    def _refits(self) -> bool:
        # Of several instances one trains; all load what the store holds.
        return not self._settings.prediction_model and os.environ.get("HMAS_INSTANCE", "0") in {"", "0"}

    def _load(self) -> Loaded:
        if self._settings.prediction_model:
            folder = Path(self._settings.prediction_model).expanduser()
            found, error = _opened(folder)
            return Loaded(folder.name, found, error)
        name = SHIPPED_NAME
        try:
            choice = self._store.choice(KIND)
            name = choice.current or SHIPPED_NAME
            found, error = _opened(self._store.current(KIND) or SHIPPED)
        except ModelError as broken:
            return Loaded(name, None, str(broken))
        shadow, shadow_error = None, ""
        if choice.shadow:
            try:
                shadow, shadow_error = _opened(self._store.open(KIND, choice.shadow))
            except ModelError as broken:
                shadow_error = str(broken)
        return Loaded(name, found, error, choice.shadow, shadow, shadow_error)

    def _swap(self, loaded: Loaded, now_s: float) -> list[Message]:
        before = self._have
        replaced = not loaded.error and (loaded.name != before or bool(self._fallback))
        if loaded.error:
            if self._active() is None:
                self._fall_back(loaded, now_s)
            else:
                self._note(now_s, "model_refused", loaded.name, before, loaded.error, severity="error")
        elif replaced:
            self.model.adopt(loaded.regressor)
            self.pace = Pace()
            self._took_s, self._batches = 0.0, 0
            self._have, self._fallback = loaded.name, ""
            self._note(now_s, "model_changed", before, loaded.name, "chosen in the store")
        self._take_shadow(loaded, now_s, replaced=replaced)
        return []

    def _take_shadow(self, loaded: Loaded, now_s: float, *, replaced: bool = False) -> None:
        """Takes the store's shadow. If the active model was `replaced`, the comparison begins again: it was with the previous one."""
        before = self.shadow.version if self.shadow is not None else ""
        self._promotion.chosen = loaded.name
        if loaded.shadow_error:
            self._note(now_s, "model_refused", loaded.shadow_name, "", loaded.shadow_error, severity="error")
        if loaded.shadow is None:
            self.shadow = None
        elif replaced or before != loaded.shadow_name:
            self.shadow = Shadow(
                loaded.shadow_name,
                loaded.shadow,
                margin=self._settings.model_shadow_margin,
                least=self._settings.model_shadow_completions,
            )
            self.model.unscored.clear()
            # A version may be in the shadow a second time, after a rollback: what was said of it then does not count.
            self._promotion.restart()
        after = self.shadow.version if self.shadow is not None else ""
        if before != after:
            self._note(now_s, "model_shadow", before, after, "chosen in the store")

    def _fall_back(self, loaded: Loaded, now_s: float) -> None:
        self._fallback = loaded.error
        log.warning("prediction works by the analytic formula: %s", loaded.error)
        self._note(now_s, "model_fallback", loaded.name, "analytic formula", loaded.error, severity="warning", subject="cost model")

    def _told_refit(self, done: Refitted, now_s: float) -> list[Message]:
        figures = (
            f"mean log error {done.before:.4f} before and {done.after:.4f} after on the newest fifth of the telemetry, which it did not see"
        )
        if done.version:
            shadow = "it reads along" if done.in_shadow else "it stays in the store, because another model or a shadow was chosen meanwhile"
            self._note(now_s, "model_refitted", self._have, done.version, f"{figures}; {shadow}")
        else:
            self._note(now_s, "model_refitted", self._have, self._have, f"{figures}: not kept")
        return []

    def _look_at_shadow(self, now_s: float) -> None:
        shadow = self.shadow
        labelled = [self.model.unscored.popleft() for _ in range(len(self.model.unscored))]
        if shadow is None:
            return
        verdict = shadow.judge(labelled, self._active())
        if event := self._promotion.judge(self._have, shadow.version, verdict):
            self._note(now_s, *event)

    def _reports(self, now_s: float) -> list[Message]:
        figures = dict(self.model.board.figures())
        if self._batches:
            figures["inference_ms"] = 1e3 * self._took_s / max(1, self.model.answered)
            figures["batch_size"] = self.model.answered / self._batches
        figures["learnt"] = float(self.model.experience.total)
        figures |= figures_of("cost", self.model.regressor.ranges if self.model.regressor is not None else None)
        for (instance, target), track in list(self.model.tracks().items())[: 2 * REPORTED_INSTANCES]:
            if track.watch.count:
                figures[f"{target}_log_error/{instance}"] = round(track.watch.model_error, 4)
        drifted = self.model.drifted()
        fallback = self._fallback or (f"drift, analytic formula for {', '.join('/'.join(key) for key in drifted[:8])}" if drifted else "")
        memory = resident_bytes()
        found: list[Message] = [
            ModelReport(
                sent_s=now_s,
                agent=self.name,
                model=self._have if not self._fallback else "analytic formula",
                requests=self.model.answered,
                scored=self.model.scored,
                figures=figures,
                fallback=fallback,
                rss_bytes=memory,
            )
        ]
        if self.shadow is not None:
            verdict = self.shadow.judge([], None)
            found.append(
                ModelReport(
                    sent_s=now_s,
                    agent=self.name,
                    model=self.shadow.version,
                    role="shadow",
                    scored=verdict.pairs,
                    figures={"gain": verdict.gain, "evidence": verdict.evidence, "pairs": float(verdict.pairs)},
                    rss_bytes=memory,
                )
            )
        return found

    def _prior_named(self, profile: str) -> tuple[Step | None, str]:
        """The speed and the GPUs of a configured profile. One that cannot be used is reported once."""
        known = self._priors.get(profile)
        if known is None:
            known = (None, UNKNOWN)
            try:
                if profile:
                    known = prior_of(profile)
            except ModelError as error:
                log.warning("profile %s: %s", profile, error)
                reason, nan = str(error), float("nan")
                self._note(nan, "profile_refused", profile, "learnt live", reason, severity="warning", subject="engines[].profile")
            if len(self._priors) < PRIORS_KEPT:
                self._priors[profile] = known
        return known

    def _note(
        self,
        now_s: float,
        kind: str,
        before: str,
        after: str,
        reason: str,
        *,
        severity: Severity = "info",
        subject: str = "prediction model",
    ) -> None:
        self._events.append(
            Event(sent_s=now_s, source=self.name, kind=kind, subject=subject, before=before, after=after, reason=reason, severity=severity)
        )


def make_agent(config: Config) -> PredictionAgent:
    """Builds the agent; without a usable model it works by the analytic formula and the residuals."""
    return PredictionAgent(config)


def _go_through(asked: Sequence[Asked]) -> _Gone:
    """Runs the trees, in any thread: it touches no state of the agent."""
    start_s = time.perf_counter()
    return _Gone([one.log_ratios() for one in asked], time.perf_counter() - start_s)


def _opened(folder: Path) -> tuple[CatBoostRegressor | None, str]:
    try:
        return load_regressor(folder), ""
    except ModelError as error:
        return None, str(error)


def _dated(message: Message, now_s: float) -> Message:
    """A message noted while the agent was built gets its time stamp when it is sent."""
    return msgspec.structs.replace(message, sent_s=now_s) if math.isnan(getattr(message, "sent_s", now_s)) else message
