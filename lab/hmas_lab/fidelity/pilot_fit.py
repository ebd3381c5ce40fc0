"""Fits a deployment to some of its runs: a start from the figures alone, then Gauss-Newton steps with the simulator in the loop."""

from collections.abc import Sequence

import numpy as np

from hmas.profiling.coefficients import Floats, robust_nnls
from hmas_lab.fidelity.descent import gauss_newton
from hmas_lab.fidelity.pilot_data import PilotRun
from hmas_lab.fidelity.pilot_model import LOWER, PARAMETERS, UPPER, Deployed, deployed, errors, predict

WEIGHTS = {"tpot": 1.0, "throughput": 1.0, "ttft": 0.6}
"""How much a relative error of each quantity counts: a median TTFT is the noisiest of the three."""

MEAN_WEIGHT = 0.5
"""Likewise of the mean ITL: it is no figure that is judged, but it tells the cost of standing still from that of a step."""

FIT_SECONDS = 30.0
_FIT_REQUESTS = 1200
"""Requests of a run that are simulated while fitting, about: more of them cost time and move no median."""
_KNEE = 0.05
_FIT_WAITS = 15
"""Likewise, median TTFTs."""

_KV_SHARES = (0.75, 1.0, 1.35, 1.8)
"""The cache's size has a threshold in its effect, which slopes do not see: starts that are tried, over the first guess."""

_DIFFERENCE = 0.12
"""Step of the numerical derivative, in logarithms: the simulated medians are staircases on a finer scale."""
_PRIOR = 0.03
"""Weight of staying at the start: what the runs do not tell stays where physics puts it."""


def fit_deployment(runs: Sequence[PilotRun], *, seconds: float = FIT_SECONDS, rounds: int = 8) -> Deployed:
    """Fits the parameters of a deployment to runs that all have figures.

    The parameters move in logarithms between physical bounds. Residuals are relative errors of the median ITL, the throughput and the
    median TTFT of every run, with a soft-L1 loss, and a weak pull towards the start.

    Args:
        runs: Two or more, of one deployment.
        seconds: Virtual time of each simulated run while fitting.
        rounds: Gauss-Newton steps at most.

    Raises:
        ValueError: Fewer than two runs, or one without figures.
    """
    if len(runs) < 2 or any(run.measured is None for run in runs):
        raise ValueError(f"{len(runs)} runs: a fit needs two or more, each with figures")
    ordered = sorted(runs, key=lambda run: run.users)
    opens_ms = ordered[0].opens_ms
    start = np.log(np.clip(start_values(ordered), LOWER, UPPER))

    def residuals(logs: Floats) -> Floats:
        what = deployed(ordered[0].deployment, np.exp(logs), opens_ms)
        found: list[float] = []
        for run in ordered:
            assert run.measured is not None, "checked above"
            predicted = predict(what, run, seconds=_seconds(run, seconds), bare=True)
            signed = errors(predicted, run.measured)
            found += [weight * np.log1p(signed[name]) for name, weight in WEIGHTS.items()]
            found.append(MEAN_WEIGHT * np.log(predicted.gap_mean_ms / run.measured.gap_mean_ms))
        return np.concatenate([np.array(found), _PRIOR * (logs - start)])

    tried = [np.append(start[:-1], np.log(kv_tokens)) for kv_tokens in _kv_starts(ordered[-1])]
    start = min(tried, key=lambda logs: float(np.abs(residuals(logs)).sum()))
    found = gauss_newton(residuals, start, np.log(LOWER), np.log(UPPER), rounds=rounds, difference=_DIFFERENCE, knee=_KNEE)
    return deployed(ordered[0].deployment, np.exp(found), opens_ms)


def start_values(runs: Sequence[PilotRun]) -> Floats:
    """A first guess of `PARAMETERS`, without simulating.

    By Little's law about `throughput x ITL` sequences decode at a time, so that the ITLs tell what a step and what each sequence costs.
    Whatever a lone user waits for beyond the opening and one step is the front end's and the prompt's.
    """
    decoding, tpots = [], []
    for run in runs:
        assert run.measured is not None, "runs to fit have figures"
        tpots.append(run.measured.tpot_ms)
        decoding.append(min(float(run.users), max(1.0, run.measured.tokens_per_s * run.measured.tpot_ms * 1e-3)))
    _, per_seq_ms = robust_nnls(np.column_stack([np.ones(len(runs)), decoding]), np.array(tpots), knee=0.1)
    # A line through all counts misses the first one where the last ones bend; the fewest users show the step itself.
    step_ms = max(0.5 * tpots[0], tpots[0] - per_seq_ms * decoding[0])
    first = runs[0]
    assert first.measured is not None, "runs to fit have figures"
    prompts = np.array([prompt for prompt, _ in first.first_ms], dtype=np.float64)
    waits = np.array([max(1.0, wait) for _, wait in first.first_ms])
    fixed_ms, per_token_ms = robust_nnls(np.column_stack([np.ones(len(prompts)), prompts]), waits, knee=0.1)
    request_ms = max(2.0, fixed_ms - 1.4 * step_ms)
    # A lone user's mean gap passes the median by what its first gap costs beside a step; about twenty tokens make an answer.
    splice_ms = max(0.3, 20.0 * (first.measured.gap_mean_ms - first.measured.tpot_ms)) if first.users == 1 else 1.0
    values = {
        "step_ms": max(1.0, step_ms),
        "decode_ms_per_seq": max(0.02, per_seq_ms),
        "decode_ms_per_kv_ktoken": 0.1,
        "prefill_ms_per_token": max(0.005, per_token_ms),
        "request_ms": request_ms,
        "splice_ms": splice_ms,
        "prompt_ms": 0.4 * step_ms,
        "patience": 16.0,
        "kv_tokens": _kv_starts(runs[-1])[0],
    }
    return np.array([values[name] for name in PARAMETERS])


def _seconds(run: PilotRun, most: float) -> float:
    """Virtual time that holds enough requests; and, where they wait long, enough waits: a full queue takes time to come about."""
    if run.measured is None:
        return most
    mean = max(1.0, float(np.mean([output for _, output in run.lengths])))
    enough = max(8.0, _FIT_REQUESTS * mean / run.measured.tokens_per_s)
    return min(run.seconds, max(min(most, enough), _FIT_WAITS * 1e-3 * run.measured.ttft_ms))


def _kv_starts(run: PilotRun) -> list[float]:
    """Guesses of the KV tokens by the largest run: more than it could ever use, and about what its running sequences take."""
    assert run.measured is not None, "runs to fit have figures"
    size = float(np.mean([prompt + output for prompt, output in run.lengths]))
    # Whoever is long runs long: those that run are longer than those that come.
    taken = 1.5 * run.measured.tokens_per_s * run.measured.gap_mean_ms * 1e-3 * size
    return [float(np.clip(value, LOWER[-1], UPPER[-1])) for value in (20.0 * run.users * size, *(share * taken for share in _KV_SHARES))]
