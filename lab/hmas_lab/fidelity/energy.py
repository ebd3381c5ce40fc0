"""Time per token against batch size: a profile fitted to some batch sizes of an engine, the others predicted by simulation."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from hmas.engines.sim.profile import Profile, load_profile, profile_names
from hmas.loadgen.streams import stream
from hmas.profiling.coefficients import robust_nnls
from hmas_lab.fidelity.closed_loop import run_closed_loop
from hmas_lab.fidelity.energy_data import Point, Sweep
from hmas_lab.fidelity.timed import TimedEngine

PROMPT_TOKENS = 1
"""The sweeps do not state their prompts' lengths. So a prompt is one token here, and all that it costs is in that token's price."""
ASSUMED_PROMPT_TOKENS = 256
"""Where nothing is fitted the prompts have to have some length; it moves the answer by the price of reading so much cache."""

LEAST_POINTS = 4
_CORRECTIONS = 2
_LEAST_STEP = 0.05
_PROMPTS_PER_STEP = 0.3
"""New prompts per step below which the median step has none."""
_ANSWERS_PER_USER = 3
_SPREAD = 0.5
"""Lengths are drawn evenly from 1 - this to 1 + this times the mean, so that sequences do not end in step."""


_TUNING = re.compile(r"-(instruct|thinking)(-\d+)?$")


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One held-out point: `error` is signed and relative."""

    sweep: Sweep
    batch: int
    itl_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        """Relative error, signed."""
        return self.predicted_ms / self.itl_ms - 1.0


def every_other(points: Sequence[Point], *, odd: bool = False) -> list[Point]:
    """The points to predict: every second batch size, never the smallest or the largest.

    With `odd` the inner points change sides, so that both splits together predict each inner point once.
    """
    return [point for place, point in enumerate(points) if 0 < place < len(points) - 1 and place % 2 == (0 if odd else 1)]


def all_but_three(points: Sequence[Point]) -> list[Point]:
    """The points to predict: all but the smallest, the middle one and the largest."""
    return [point for place, point in enumerate(points) if place not in (0, len(points) // 2, len(points) - 1)]


def fit_engine(name: str, seen: Mapping[Sweep, Sequence[Point]]) -> Profile:
    """A profile from sweeps of one engine.

    A step of n sequences over K cached tokens takes `curve(n) + d K`: the curve bends at the batch sizes that were seen, and nowhere falls.
    (It is no straight line: a mixture of experts reads more of its weights the more sequences there are.) One d for all tasks of the
    engine: their answers differ in length, and that tells what reading the cache costs. A prompt costs what the throughput lacks towards
    `n / ITL`. Where prompts come at every other step or more, the measured median holds some of that already: so the fit is made again,
    twice, with each point moved by what the simulator got wrong there.
    """
    aims = {id(point): point.itl_ms for points in seen.values() for point in points}
    profile = _fitted(name, seen, aims)
    disturbed = [point for points in seen.values() for point in points if point.running > _PROMPTS_PER_STEP * point.output_tokens]
    for _ in range(_CORRECTIONS if disturbed else 0):
        for point in disturbed:
            aims[id(point)] *= min(1.25, max(0.8, point.itl_ms / max(1e-3, predict_itl_ms(profile, point))))
        profile = _fitted(name, seen, aims)
    return profile


def _fitted(name: str, seen: Mapping[Sweep, Sequence[Point]], aims: Mapping[int, float]) -> Profile:
    knots = sorted({point.batch for points in seen.values() for point in points})
    rows, measured, shortfalls = [], [], []
    for points in seen.values():
        for point in points:
            climb = [1.0, *(_climbed(point.running, low, high) for low, high in pairwise(knots))]
            rows.append([*climb, _cached(point) * 1e-3])
            measured.append(aims[id(point)])
            # What each answer's prompt adds to the batch's time.
            lost_ms = 1000.0 * point.running / point.tokens_per_s - point.itl_ms
            shortfalls.append(max(0.0, lost_ms) * point.output_tokens / point.running / PROMPT_TOKENS)
    found = robust_nnls(np.array(rows), np.array(measured))
    # Where cache and batch grow together the fit may give all to the cache; a step without sequences costs something all the same.
    found[0] = max(found[0], _LEAST_STEP * min(measured))
    levels = np.cumsum(found[:-1])
    any_sweep = next(iter(seen))
    most = max(knots)
    return Profile(
        name=name,
        gpu=any_sweep.gpu.lower(),
        model=any_sweep.model,
        source="Fitted to ML.ENERGY's sweeps of vLLM by `hmas-lab fidelity`.",
        tp=any_sweep.gpus,
        step_ms=0.0,
        token_curve=tuple((knot, float(f"{level:.6g}")) for knot, level in zip(knots, levels, strict=True)),
        prefill_ms_per_token=float(f"{np.median(shortfalls):.6g}"),
        prefill_ms_per_ktoken_sq=0.0,
        decode_ms_per_seq=0.0,
        decode_ms_per_kv_ktoken=float(f"{found[-1]:.6g}"),
        kv_blocks=1 << 24,
        kv_bytes_per_token=1,
        max_num_seqs=most,
        max_num_batched_tokens=most + 8192,
        max_model_len=1 << 20,
    )


def predict_itl_ms(profile: Profile, point: Point, *, prompt_tokens: int = PROMPT_TOKENS, seed: int = 1) -> float:
    """The median ITL of an engine kept full with `point.running` sequences, by simulation; the point's times are not looked at."""
    engine = TimedEngine(profile, n_run=profile.max_num_seqs)
    rng = stream(seed, "energy", point.batch)
    users = max(1, round(point.running))
    spread = rng.uniform(1.0 - _SPREAD, 1.0 + _SPREAD, size=max(64, users))
    lengths = [(prompt_tokens, max(2, round(point.output_tokens * share))) for share in spread.tolist()]
    decoding_s = profile.step_duration_s(
        prefill_tokens=0, prefill_pairs=0, decode_seqs=users, decode_kv_tokens=round(_cached(point, prompt_tokens))
    )
    prompt_s = 1e-3 * profile.prefill_ms_per_token * prompt_tokens
    answer_s = decoding_s * point.output_tokens + prompt_s * users
    run_closed_loop(engine, lengths, users=users, seconds=_ANSWERS_PER_USER * answer_s, seed=seed)
    return engine.gap_median_ms()


def study(sweeps: Mapping[Sweep, Sequence[Point]], held_of: Callable[[Sequence[Point]], list[Point]]) -> list[Prediction]:
    """Predicts the points of each engine's sweeps that `held_of` picks, from the others."""
    engines: dict[tuple[object, ...], dict[Sweep, Sequence[Point]]] = {}
    for sweep, points in sweeps.items():
        if len(points) >= LEAST_POINTS:
            engines.setdefault(sweep.engine, {})[sweep] = points
    found: list[Prediction] = []
    for number, group in enumerate(engines.values()):
        held = {sweep: held_of(points) for sweep, points in group.items()}
        profile = fit_engine(
            f"engine-{number}", {sweep: [point for point in points if point not in held[sweep]] for sweep, points in group.items()}
        )
        found += [
            Prediction(sweep=sweep, batch=point.batch, itl_ms=point.itl_ms, predicted_ms=predict_itl_ms(profile, point))
            for sweep, points in held.items()
            for point in points
        ]
    return found


def unfitted(sweeps: Mapping[Sweep, Sequence[Point]]) -> list[Prediction]:
    """Every point of the sweeps whose engine has a ready profile, predicted from that: composed from kernels, with nothing fitted here."""
    found: list[Prediction] = []
    for sweep, points in sweeps.items():
        name = ready_profile(sweep)
        if name is None:
            continue
        profile = load_profile(name)
        fits = [point for point in points if point.running <= profile.max_num_seqs and point.output_tokens < profile.max_model_len / 2]
        found += [
            Prediction(
                sweep=sweep,
                batch=point.batch,
                itl_ms=point.itl_ms,
                predicted_ms=predict_itl_ms(profile, point, prompt_tokens=ASSUMED_PROMPT_TOKENS),
            )
            for point in fits
        ]
    return found


def ready_profile(sweep: Sweep) -> str | None:
    """Name of the profile that comes with the package for a sweep's engine, None where there is none."""
    model = _TUNING.sub("", sweep.model.rsplit("/", 1)[-1].lower()).replace("llama-3.1", "llama-3").replace("llama-3.3", "llama-3")
    name = f"{sweep.gpu.lower()}-{model}" + ("" if sweep.gpus == 1 else f"-tp{sweep.gpus}")
    return name if sweep.dtype == "bfloat16" and sweep.dp == 1 and name in profile_names() else None


def _climbed(running: float, low: int, high: int) -> float:
    """How far along a stretch of the curve a batch of `running` stands, 0 to 1."""
    return min(1.0, max(0.0, (running - low) / (high - low)))


def _cached(point: Point, prompt_tokens: int = PROMPT_TOKENS) -> float:
    """Cached tokens that a step reads: in the mean each sequence has half of its answer."""
    return point.running * (prompt_tokens + point.output_tokens / 2.0)
