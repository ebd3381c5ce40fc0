"""Fits the coefficients of a profile to measurements of an engine, and computes the remaining error."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls  # type: ignore[import-untyped]  # it ships no types

from hmas.controller.core.errors import HmasError

Floats = NDArray[np.float64]
_ROUNDS = 30
COEFFICIENTS = (
    "step_ms",
    "request_ms",
    "prefill_ms_per_seq",
    "prefill_ms_per_token",
    "prefill_ms_per_ktoken_sq",
    "decode_ms_per_seq",
    "decode_ms_per_kv_ktoken",
)
_NEWCOMER = COEFFICIENTS.index("prefill_ms_per_seq")
_TURNS = 20
_LEAST_REST = 0.05
"""Least share of a prompt's time that is not attributed to the cost of a new sequence."""
_LEAST_STEP_MS = 1e-3


class FitImpossible(HmasError):
    """The measurements do not determine a profile; the error says what is missing."""


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt that ran alone on the engine, of 1 token or more, and the time from sending it to its first token."""

    prompt_tokens: int
    ttft_ms: float


class Decode(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a decoding batch, with or without new requests whose prompts were computed in some of the steps.

    Attributes:
        seqs: Sequences that decoded, 1 or more.
        kv_tokens: Sum of cached tokens that they read, mean over the steps.
        step_ms: The mean step time, median over the sequences.
        joined: New requests per step; 0 if there were none.
        joined_tokens: Their prompt tokens per step. `joined_pairs`: their query-key pairs per step.
    """

    seqs: int
    kv_tokens: float
    step_ms: float
    joined: float = 0.0
    joined_tokens: float = 0.0
    joined_pairs: float = 0.0


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """Relative error of a quantity over the measurements of its fit: their number, median and 90th percentile."""

    quantity: str
    count: int
    median: float
    p90: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Coefficients by the names of `hmas.engines.sim.profile.Profile`, and the remaining error per quantity."""

    values: dict[str, float]
    misfits: tuple[Misfit, ...]


def fit_coefficients(prefills: Sequence[Prefill], decodes: Sequence[Decode], *, tokens_per_step: int) -> Fit:
    """Fits the step time to both kinds of measurements at once.

    A prompt of L tokens alone takes `request_ms + ceil(L / tokens_per_step) (step_ms + s) + a L + b L (L + 1) / 2` until its first token;
    a step of n sequences over K cached tokens takes `step_ms + c n + d K` (the form of `Profile`), and a new request adds s and its prompt.
    The decode steps determine the fixed cost of a step. Single prompts and plain batches are fitted with a given s, 0 at first. Then s is
    the median extra time of batches that new requests joined, and both steps alternate. In a joint fit the few rows with new requests would
    count as outliers among the many others. Without such rows a prompt's whole fixed cost is attributed to the front end.

    Args:
        prefills: Single prompts, of at least two lengths.
        decodes: Decode steps, at two or more different numbers of sequences, with or without new requests.
        tokens_per_step: The engine's budget: a longer prompt takes several steps.

    Raises:
        FitImpossible: There are too few different measurements.
    """
    if len({one.prompt_tokens for one in prefills}) < 2:
        raise FitImpossible(f"{len(prefills)} prompts of one length: a profile needs prompts of two lengths or more")
    alone = [one for one in decodes if not one.joined]
    mixed = [one for one in decodes if one.joined]
    if len({one.seqs for one in alone}) < 2:
        raise FitImpossible(f"{len(alone)} measurements of decoding at one concurrency: a profile needs two or more")
    design = np.array([_prefill_row(one, tokens_per_step) for one in prefills] + [_decode_row(one) for one in (*alone, *mixed)])
    measured = np.array([one.ttft_ms for one in prefills] + [one.step_ms for one in (*alone, *mixed)])
    newcomers = design[:, _NEWCOMER].copy()
    design[:, _NEWCOMER] = 0.0
    first = len(prefills) + len(alone)
    newcomer_ms = 0.0
    for _ in range(_TURNS if mixed else 1):
        found = robust_nnls(design[:first], np.maximum(measured - newcomer_ms * newcomers, _LEAST_REST * measured)[:first])
        if mixed:
            newcomer_ms = max(0.0, float(np.median((measured[first:] - design[first:] @ found) / newcomers[first:])))
    design[:, _NEWCOMER] = newcomers
    found[_NEWCOMER] = newcomer_ms
    values = dict(zip(COEFFICIENTS, (float(value) for value in found), strict=True))
    values["step_ms"] = max(_LEAST_STEP_MS, values["step_ms"])
    relative = np.abs(design @ found / measured - 1.0)
    split = len(prefills)
    return Fit(values=values, misfits=(misfit("TTFT", relative[:split]), misfit("TPOT", relative[split:])))


def misfit(quantity: str, relative_errors: Floats) -> Misfit:
    """Median and 90th percentile of absolute relative errors, at least one."""
    return Misfit(
        quantity=quantity,
        count=len(relative_errors),
        median=float(np.median(relative_errors)),
        p90=float(np.quantile(relative_errors, 0.9)),
    )


def _prefill_row(one: Prefill, tokens_per_step: int) -> list[float]:
    tokens = one.prompt_tokens
    steps = float(-(-tokens // tokens_per_step))
    return [steps, 1.0, steps, float(tokens), tokens * (tokens + 1) / 2 * 1e-6, 0.0, 0.0]


def _decode_row(one: Decode) -> list[float]:
    return [1.0, 0.0, one.joined, one.joined_tokens, one.joined_pairs * 1e-6, float(one.seqs), one.kv_tokens * 1e-3]


def robust_nnls(design: Floats, measured: Floats, *, knee: float = 0.05) -> Floats:
    """Non-negative coefficients `x` with which `design @ x` is close to `measured`.

    Minimises the sum over the rows of the soft-L1 loss `2 (sqrt(1 + (r / knee)^2) - 1)` of the relative residual `r`, by reweighted
    non-negative least squares. The loss is quadratic for residuals below `knee` and linear beyond, so that a row that was measured while
    the machine stalled changes the result little.

    Args:
        design: (rows, coefficients), finite.
        measured: (rows,), more than 0.
        knee: Relative residual above which a row counts as an outlier.

    Raises:
        ValueError: Shapes do not fit, a value is not finite, or a measured value is not more than 0.
    """
    if design.ndim != 2 or measured.shape != (design.shape[0],):
        raise ValueError(f"design {design.shape} and measured {measured.shape}: allowed are (rows, coefficients) and (rows,)")
    if not (np.isfinite(design).all() and np.isfinite(measured).all() and (measured > 0).all()):
        raise ValueError("design and measured must be finite, measured more than 0")
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
    relative = design / scale / measured[:, None]
    weights = np.ones(len(measured))
    solution = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        found: Any = nnls(relative * weights[:, None], weights)[0]
        residual = relative @ found - 1.0
        weights = (1.0 + (residual / knee) ** 2) ** -0.25
        if np.allclose(found, solution, rtol=1e-6, atol=1e-12):
            break
        solution = found
    return np.asarray(found / scale, dtype=np.float64)
