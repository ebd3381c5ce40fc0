"""From kernel by kernel to a profile's few numbers: weighted least squares with coefficients of 0 or more, and the error that it costs."""

from itertools import combinations
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from hmas.engines.sim.profile import Profile
from hmas_lab.profiles.step import StepCost

Floats = npt.NDArray[np.float64]

BREAKPOINTS = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)
"""Tokens of the curve's points: as dense as GEMMs were measured, so that straight lines between them lose little."""

DECODES = tuple(
    (seqs, tokens) for seqs in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) for tokens in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
)
PREFILLS = tuple(
    (prompts, tokens) for prompts in (1, 2, 4, 8, 16, 32) for tokens in (128, 256, 512, 1024, 2048, 4096, 8192) if prompts * tokens <= 8192
)
TOLERATED = 0.02
"""Relative error up to which steps are fitted by least squares."""

ROUNDS = 10

DIGITS = 5
"""Significant digits that are kept: more than the data has, and few enough to be the same on every machine."""


class Errors(NamedTuple):
    """Relative error of a profile against the sum of its kernels: median and worst, over how many steps, and which step is the worst."""

    median: float
    worst: float
    steps: int
    worst_at: str

    def text(self) -> str:
        """In words."""
        return f"{self.median:.1%} at the median and {self.worst:.1%} at worst ({self.worst_at}; {self.steps} steps)"


NO_ERRORS = Errors(0.0, 0.0, 0, "")


class Step(NamedTuple):
    """A step's work as a profile counts it, and what its kernels take."""

    prefill_tokens: int
    prefill_pairs: int
    decode_seqs: int
    decode_kv_tokens: int
    ms: float
    about: str


class Reduced(NamedTuple):
    """A profile's numbers and their errors."""

    token_curve: tuple[tuple[int, float], ...]
    step_ms: float
    prefill_ms_per_token: float
    prefill_ms_per_ktoken_sq: float
    decode_ms_per_seq: float
    decode_ms_per_kv_ktoken: float
    decode: Errors
    prefill: Errors


def decode_steps(cost: StepCost, kv_capacity_tokens: int) -> list[Step]:
    """Steps in which sequences only decode: the part of the grid that the model and its KV cache allow and that was measured."""
    steps = []
    for seqs, tokens in DECODES:
        allowed = tokens <= cost.model.max_position_embeddings and seqs * tokens <= kv_capacity_tokens
        if allowed and cost.kernels.covers(prefill=False, seqs=seqs, tokens=tokens):
            ms = cost.tokens_ms(seqs) + cost.head_ms(seqs) + cost.decode_ms(seqs, tokens)
            steps.append(Step(0, 0, seqs, seqs * tokens, ms, f"{seqs} x {tokens}"))
    return steps


def prefill_steps(cost: StepCost, max_tokens: int) -> list[Step]:
    """Steps that compute whole prompts only, of up to `max_tokens` together."""
    steps = []
    for prompts, tokens in PREFILLS:
        total = prompts * tokens
        if total <= max_tokens and cost.kernels.covers(prefill=True, seqs=prompts, tokens=tokens):
            ms = cost.tokens_ms(total) + cost.head_ms(prompts) + cost.prefill_ms(prompts, tokens)
            steps.append(Step(total, total * (tokens + 1) // 2, 0, 0, ms, f"{prompts} x {tokens}"))
    return steps


def reduce_cost(cost: StepCost, *, kv_capacity_tokens: int, max_tokens: int) -> Reduced:
    """The profile's numbers for a step's cost.

    The curve is taken as it is at its breakpoints (raised where a larger step would measure faster, as some GEMM shapes do). What is left
    of each step, attention and the head, is fitted in relative error; decode and prefill weigh the same. Steps that a linear form misses
    by more than `TOLERATED` pull with their error and not with its square (Huber's loss, by reweighting), so that a few extremes, such as
    long contexts over few heads, do not spoil the ordinary steps.

    Args:
        cost: What steps cost.
        kv_capacity_tokens: Tokens that the KV cache holds: no step reads more.
        max_tokens: Tokens of the largest prefill step to fit.
    """
    curve = _curve(cost)
    decodes, prefills = decode_steps(cost, kv_capacity_tokens), prefill_steps(cost, max_tokens)
    breakpoints = np.array([tokens for tokens, _ in curve]), np.array([ms for _, ms in curve])
    rows, rest, relative, shares = [], [], [], []
    for steps in (decodes, prefills):
        for step in steps:
            rows.append((1.0, step.prefill_tokens, step.prefill_pairs * 1e-6, step.decode_seqs, step.decode_kv_tokens * 1e-3))
            rest.append(step.ms - float(np.interp(step.prefill_tokens + step.decode_seqs, *breakpoints)))
            relative.append(1.0 / step.ms)
            shares.append(len(steps) ** -0.5)
    constant, per_token, per_pair, per_seq, per_kv = (
        rounded(value) for value in _robust(np.array(rows), np.array(rest), np.array(relative), np.array(shares))
    )
    reduced = Reduced(curve, constant, per_token, per_pair, per_seq, per_kv, NO_ERRORS, NO_ERRORS)
    return reduced._replace(decode=_errors(reduced, decodes), prefill=_errors(reduced, prefills))


def _robust(rows: Floats, values: Floats, relative: Floats, shares: Floats) -> Floats:
    """Huber's loss of relative residuals, each equation weighing its share, by least squares over and over."""
    numbers = least_squares(rows, values, relative * shares)
    for _ in range(ROUNDS):
        missed = np.abs(rows @ numbers - values) * relative
        numbers = least_squares(rows, values, relative * shares * np.sqrt(TOLERATED / np.maximum(missed, TOLERATED)))
    return numbers


def least_squares(rows: Floats, values: Floats, weights: Floats) -> Floats:
    """Weighted least squares with coefficients of 0 or more; tries every set of positive ones, so few coefficients only.

    Args:
        rows: Shape (equations, coefficients).
        values: Right-hand sides.
        weights: What each equation's residual is multiplied by.
    """
    count = rows.shape[1]
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    left, right = rows / scale * weights[:, None], values * weights
    best, best_cost = np.zeros(count), float(right @ right)
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            solution = np.linalg.lstsq(left[:, chosen], right, rcond=None)[0]
            residual = left[:, chosen] @ solution - right
            if (solution >= 0).all() and residual @ residual < best_cost * (1 - 1e-12):
                best, best_cost = np.zeros(count), float(residual @ residual)
                best[list(chosen)] = solution
    result: Floats = best / scale
    return result


def rounded(value: float) -> float:
    """A number to a few significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _curve(cost: StepCost) -> tuple[tuple[int, float], ...]:
    curve: list[tuple[int, float]] = []
    for tokens in BREAKPOINTS:
        ms = rounded(cost.tokens_ms(tokens))
        curve.append((tokens, max(ms, curve[-1][1]) if curve else ms))
    return tuple(curve)


def _errors(reduced: Reduced, steps: list[Step]) -> Errors:
    profile = msgspec.convert(
        {"name": "", "gpu": "", "model": "", "source": "", "kv_blocks": 1, "kv_bytes_per_token": 1, "max_model_len": 1}
        | {field: value for field, value in reduced._asdict().items() if field not in ("decode", "prefill")},
        Profile,
    )
    errors = [
        abs(
            1e3
            * profile.step_duration_s(
                prefill_tokens=step.prefill_tokens,
                prefill_pairs=step.prefill_pairs,
                decode_seqs=step.decode_seqs,
                decode_kv_tokens=step.decode_kv_tokens,
            )
            / step.ms
            - 1
        )
        for step in steps
    ]
    worst = int(np.argmax(errors))
    return Errors(float(np.median(errors)), float(errors[worst]), len(errors), steps[worst].about)
