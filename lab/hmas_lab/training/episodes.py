"""Generates training data: random engines under random loads in virtual time, observed by the agent's own model.

Each episode draws an engine profile (a shipped one, or random figures), a window and a workload. A gateway with one queue feeds the engine
model; the prediction model follows snapshots and completions exactly as it does live. A row is the regressor's input when the request
arrived; its label is the outcome: logarithms of actual over analytic TTFT and TPOT.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.prediction.asking import Regressor
from hmas.agents.prediction.experience import Labelled, Table, as_table
from hmas.agents.prediction.features import UNKNOWN, categories
from hmas.agents.prediction.model import PredictionModel
from hmas.agents.prediction.prior import hardware_of, speed_of
from hmas.controller.core.messages import Completion, InstanceView, RequestFeatures, SystemSnapshot
from hmas.controller.core.types import DEFAULT_IMPORTANCE, OutcomeKind, TaskType
from hmas.engines.sim.model import EngineModel, SimRequest, TokenEvent
from hmas.engines.sim.profile import Profile, load_profile, profile_names

TICK_S = 0.1
WARM_UP = 25
"""Completions after which an episode's rows count: before, the instance's speed is hardly known."""
REQUESTS = 150
NAME = "engine"


class Estimate(msgspec.Struct, frozen=True):
    """Milliseconds from dispatch to first token, and per output token."""

    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One request.

    Attributes:
        row, names: The regressor's input.
        formula: The analytic prediction.
        said: The agent's prediction with all corrections at that time.
        ttft_ms, tpot_ms: The outcome; `tpot_ms` is -1 with fewer than two tokens.
    """

    row: NDArray[np.float32]
    names: tuple[bytes, ...]
    formula: Estimate
    said: Estimate
    ttft_ms: float
    tpot_ms: float

    @property
    def labels(self) -> tuple[float, float]:
        """Logarithms of actual over analytic TTFT and TPOT; NaN if there is no TPOT."""
        tpot = math.log(self.tpot_ms / self.formula.tpot_ms) if self.tpot_ms > 0 else math.nan
        return math.log(self.ttft_ms / self.formula.ttft_ms), tpot


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of an episode; `predicted` is the length that perception would have predicted."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    predicted: float


@dataclass(slots=True)
class _Life:
    arrival: Arrival
    asked: tuple[NDArray[np.float32], tuple[bytes, ...], Estimate, Estimate] | None = None
    dispatched_s: float = 0.0
    first_s: float = 0.0
    running: int = 0


@dataclass(slots=True)
class Episode:
    """One engine under one load, run to its end in virtual time.

    Attributes:
        window: Most requests in flight.
        model: The agent's model, which follows the episode.
        jitter: Sigma of the log-normal scatter of step times.
        tells_load: Whether snapshots contain the engine's own figures.
        fence_tokens: Limit of the KV tokens of requests in flight; 0 for no fence.
        serves: Name of the model in the requests.
    """

    engine: EngineModel
    window: int
    arrivals: list[Arrival]
    rng: np.random.Generator
    jitter: float
    tells_load: bool
    fence_tokens: int
    model: PredictionModel
    serves: str = UNKNOWN
    _lives: dict[str, _Life] = field(default_factory=dict)
    _queue: deque[str] = field(default_factory=deque)
    _in_flight: dict[str, int] = field(default_factory=dict)
    _committed: int = 0
    _ended: int = 0

    def run(self) -> Iterator[Sample]:
        """Runs the episode and yields a sample per completed request after the warm-up."""
        events = [(arrival.at_s, 0, str(number)) for number, arrival in enumerate(self.arrivals)]
        events.append((0.0, 1, "tick"))
        heapq.heapify(events)
        running: list[TokenEvent] | None = None
        while self._ended < len(self.arrivals):
            at_s, _, what = heapq.heappop(events)
            if what == "tick":
                self.model.observe(self._snapshot(at_s))
                heapq.heappush(events, (at_s + TICK_S, 1, "tick"))
            elif what == "step":
                for event in running or []:
                    yield from self._token(event, at_s)
                running = None
            else:
                self._arrive(what, at_s)
            self._dispatch(at_s)
            result = self.engine.step(at_s) if running is None else None
            if result is not None:
                running = result.produced
                heapq.heappush(events, (at_s + (result.end_s - at_s) * math.exp(self.jitter * self.rng.standard_normal()), 2, "step"))

    def _arrive(self, request_id: str, at_s: float) -> None:
        arrival = self.arrivals[int(request_id)]
        life = _Life(arrival)
        asked = [_features(request_id, arrival, at_s, self.serves)]
        for cost in self.model.predict(asked, at_s):
            if self._ended >= WARM_UP and (fleet := self.model.fleet(asked[0].model)) is not None:
                prompts, outputs = np.array([float(arrival.prompt_tokens)]), np.array([asked[0].output_tokens])
                ttft, tpot = fleet.analytic(prompts)
                life.asked = (
                    fleet.rows(prompts, outputs, ttft)[0],
                    tuple(categories(asked, fleet)[0]),
                    Estimate(float(ttft[0, 0]), float(tpot[0, 0])),
                    Estimate(cost.ttft_ms[NAME], cost.tpot_ms[NAME]),
                )
        self._lives[request_id] = life
        self._queue.append(request_id)

    def _dispatch(self, at_s: float) -> None:
        while self._queue and len(self._in_flight) < self.window:
            life = self._lives[self._queue[0]]
            upper = life.arrival.prompt_tokens + life.arrival.output_tokens
            if self._in_flight and self.fence_tokens and self._committed + upper > self.fence_tokens:
                return
            request_id = self._queue.popleft()
            self._committed += upper
            life.dispatched_s, life.running = at_s, len(self._in_flight)
            self._in_flight[request_id] = life.arrival.prompt_tokens
            self.engine.add(SimRequest(request_id, life.arrival.prompt_tokens, life.arrival.output_tokens, 0, at_s))

    def _token(self, event: TokenEvent, at_s: float) -> Iterator[Sample]:
        request_id, tokens = event.id, event.tokens_so_far
        life = self._lives[request_id]
        self._in_flight[request_id] = life.arrival.prompt_tokens + tokens
        if event.first:
            life.first_s = at_s
        if not event.finished:
            return
        del self._in_flight[request_id], self._lives[request_id]
        self._committed -= life.arrival.prompt_tokens + life.arrival.output_tokens
        self._ended += 1
        ttft_ms = 1000.0 * (life.first_s - life.dispatched_s)
        tpot_ms = 1000.0 * (at_s - life.first_s) / (tokens - 1) if tokens > 1 else -1.0
        self.model.learn(_completion(life, event, at_s, ttft_ms, tpot_ms))
        if life.asked is not None:
            yield Sample(*life.asked, ttft_ms, tpot_ms)

    def _snapshot(self, at_s: float) -> SystemSnapshot:
        view = InstanceView(
            name=NAME,
            in_flight=len(self._in_flight),
            in_flight_tokens=sum(self._in_flight.values()),
            n_run=self.window,
            token_budget=0,
            kv_committed=0.0,
            tpot_pressure=0.0,
            queued_for=float(len(self._queue)),
            capacity_n_run=self.engine.profile.max_num_seqs,
            engine=self.engine.snapshot(NAME, at_s) if self.tells_load else None,
        )
        return SystemSnapshot(
            sent_s=at_s,
            gateway="generator",
            policy="fcfs",
            queued=len(self._queue),
            queued_tokens=0,
            queued_long=0,
            overdue=0,
            oldest_wait_ms=0.0,
            arrived_total=0,
            dispatched_total=0,
            ended={},
            instances=[view],
        )


def random_profile(rng: np.random.Generator) -> Profile:
    """Draws an engine between a small model on a large GPU and a large model on a CPU.

    Half of them have the curve of real kernels: flat while reading the weights bounds the step, then rising in proportion from the batch at
    which computing does, with bumps in between. The others are straight lines, as on a CPU or in a profile fitted to few measurements.
    """
    floor_ms = float(np.exp(rng.uniform(np.log(2.0), np.log(60.0))))
    knee = float(np.exp(rng.uniform(np.log(8.0), np.log(256.0))))
    per_token = floor_ms / knee * float(rng.uniform(0.6, 1.0))
    curved, straight = bool(rng.random() < 0.5), 0.03 * floor_ms
    host_ms = floor_ms * float(np.exp(rng.uniform(np.log(0.02), np.log(0.5))))
    budget = int(2 ** rng.integers(8, 14))
    capacity = int(np.exp(rng.uniform(np.log(16_000), np.log(400_000))))
    return Profile(
        name="random",
        gpu="any",
        model="any",
        source="drawn for training",
        step_ms=host_ms,
        token_curve=_curve(rng, floor_ms, per_token) if curved else ((1, floor_ms),),
        prefill_ms_per_token=per_token * float(rng.uniform(0.0, 0.3)) if curved else straight * float(np.exp(rng.uniform(-2.6, 0.0))),
        prefill_ms_per_ktoken_sq=floor_ms * float(rng.uniform(0.0, 0.8)),
        prefill_ms_per_seq=float(rng.choice([0.0, 0.05])) * floor_ms,
        decode_ms_per_seq=floor_ms * float(np.exp(rng.uniform(np.log(0.001 if curved else 0.003), np.log(0.03 if curved else 0.06)))),
        decode_ms_per_kv_ktoken=floor_ms * float(np.exp(rng.uniform(np.log(0.002), np.log(0.03)))),
        kv_blocks=max(-(-capacity // 16), 512),
        kv_bytes_per_token=131_072,
        max_num_seqs=int(2 ** rng.integers(4, 9)),
        max_num_batched_tokens=budget,
        max_model_len=8192,
    )


def drawn_profile(rng: np.random.Generator) -> Profile:
    """Draws a random profile, or a shipped one with another cache size and another budget; never the demo's."""
    if rng.random() < 0.6:
        return random_profile(rng)
    names = [name for name in profile_names() if not name.startswith("demo")]
    profile = load_profile(names[int(rng.integers(0, len(names)))])
    length = min(8192, profile.max_model_len)
    blocks = int(profile.kv_blocks * np.exp(rng.uniform(np.log(0.1), 0.0)))
    return msgspec.structs.replace(
        profile,
        max_model_len=length,
        kv_blocks=max(blocks, -(-length // profile.block_size)),
        max_num_batched_tokens=int(2 ** rng.integers(9, 14)),
        max_num_seqs=int(2 ** rng.integers(5, 9)),
    )


def _curve(rng: np.random.Generator, floor_ms: float, per_token: float) -> tuple[tuple[int, float], ...]:
    points: list[tuple[int, float]] = []
    highest = 0.0
    for exponent in np.arange(0.0, 14.5, 0.5):
        tokens = round(2.0 ** float(exponent))
        # The larger of reading and computing, rounded at the knee as with overlapping kernels, and never falling.
        ms = (floor_ms**3 + (per_token * tokens) ** 3) ** (1.0 / 3.0) * float(rng.uniform(0.96, 1.04))
        highest = max(highest, ms)
        if not points or tokens > points[-1][0]:
            points.append((tokens, highest))
    return tuple(points)


def random_episode(rng: np.random.Generator, regressor: Regressor | None = None, requests: int = REQUESTS) -> Episode:
    """Draws an engine, a window and a matching load: from idle to slightly above the engine's capacity, steady or in bursts."""
    profile = drawn_profile(rng)
    window = int(np.clip(np.exp(rng.uniform(np.log(2), np.log(96))), 1, profile.max_num_seqs))
    prompts = np.clip(np.exp(rng.normal(rng.uniform(4.0, 7.2), rng.uniform(0.3, 1.2), requests)), 4, 6000).astype(int)
    outputs = np.clip(np.exp(rng.normal(rng.uniform(3.0, 5.4), rng.uniform(0.3, 1.0), requests)), 1, 1200).astype(int)
    prompts = np.minimum(prompts, min(profile.max_model_len, profile.kv_capacity_tokens) - outputs)
    mean_work_s = work_s(profile, window, float(prompts.mean()), float(outputs.mean()))
    mean_gap_s = mean_work_s / rng.uniform(0.15, 1.25)
    gaps = rng.gamma(shape := float(rng.choice([0.3, 1.0, 1.0, 4.0])), mean_gap_s / shape, requests)
    swing = rng.uniform(0.0, 0.9)
    period_s = mean_gap_s * rng.uniform(15, 80)
    at_s = 0.0
    arrivals = []
    for gap, prompt, output in zip(gaps, prompts, outputs, strict=True):
        at_s += float(gap) / (1.0 + swing * math.sin(2 * math.pi * at_s / period_s))
        arrivals.append(Arrival(at_s, int(prompt), int(output), float(output * np.exp(rng.normal(0.0, 0.6)))))
    # Some operators name their profile, and with it the hardware; most do not.
    named = profile.name != "random" and rng.random() < 0.4
    model = PredictionModel(
        regressor,
        prior_named=lambda _profile: (speed_of(profile), hardware_of(profile)) if named else (None, UNKNOWN),
    )
    return Episode(
        EngineModel(profile),
        window,
        arrivals,
        rng,
        jitter=float(rng.uniform(0.0, 0.1)),
        tells_load=bool(rng.random() < 0.8),
        # Most gateways hold back what the KV cache cannot hold; the others let the engine preempt.
        model=model,
        serves=profile.model if profile.name != "random" and rng.random() < 0.8 else UNKNOWN,
        fence_tokens=int(0.95 * profile.kv_capacity_tokens) if rng.random() < 0.85 else 0,
    )


def work_s(profile: Profile, window: int, prompt: float, output: float) -> float:
    """Returns the engine seconds of a mean request when the window is full: the inverse of the engine's capacity."""
    running = min(window, profile.max_num_seqs, max(1, int(profile.kv_capacity_tokens / (prompt + output))))
    step_ms, per_kv_token_ms = profile.decode_line(running)
    decode_ms = step_ms + per_kv_token_ms * running * (prompt + output / 2)
    # Cost of a prompt token in steps that run anyway, averaged over the largest step.
    tokens = min(profile.max_num_batched_tokens, 2048)
    per_token_ms = (profile.curve_ms(running + tokens) - profile.curve_ms(running)) / tokens + profile.prefill_ms_per_token
    prefill_ms = prompt * per_token_ms + profile.prefill_ms_per_ktoken_sq * prompt * prompt / 2e6 + profile.prefill_ms_per_seq
    return (output * decode_ms / running + prefill_ms) / 1000.0


def samples(seed: int, episodes: int, regressor: Regressor | None = None) -> Iterator[list[Sample]]:
    """Yields samples episode by episode; each episode has its own random generator, so any of them can be repeated alone."""
    for number in range(episodes):
        yield list(random_episode(np.random.default_rng([seed, number]), regressor).run())


def table(found: list[Sample]) -> Table:
    """Returns the samples as columns, the training format of a regressor."""
    return as_table([Labelled(sample.row, sample.names, sample.labels) for sample in found])


def _features(request_id: str, arrival: Arrival, at_s: float, model: str) -> RequestFeatures:
    return RequestFeatures(
        request_id=request_id,
        sent_s=at_s,
        tenant="t",
        model=model,
        prompt_tokens=arrival.prompt_tokens,
        task_type=TaskType.UNKNOWN,
        confidence=0.0,
        ttft_slo_ms=1.0,
        tpot_slo_ms=1.0,
        importance=DEFAULT_IMPORTANCE,
        output_tokens=max(1.0, arrival.predicted),
        output_tokens_p90=max(1.0, arrival.predicted) * 2.0,
    )


def _completion(life: _Life, event: TokenEvent, at_s: float, ttft_ms: float, tpot_ms: float) -> Completion:
    arrival_s = life.arrival.at_s
    return Completion(
        request_id=event.id,
        sent_s=at_s,
        tenant="t",
        model="m",
        outcome=OutcomeKind.COMPLETED,
        arrival_s=arrival_s,
        policy="fcfs",
        instance=NAME,
        prompt_tokens=life.arrival.prompt_tokens,
        output_tokens=event.tokens_so_far,
        queue_ms=1000.0 * (life.dispatched_s - arrival_s),
        ttft_ms=1000.0 * (life.first_s - arrival_s),
        service_ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        total_ms=1000.0 * (at_s - arrival_s),
        running=life.running,
    )
