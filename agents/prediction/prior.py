"""Derives an engine's speed from its configuration, before any measurement: from a performance profile or from data sheets.

Pure but for reading the profile. `Formula` is fitted to measured engines by `hmas-lab llm-pilot`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from hmas.agents.prediction.hardware import Setup, setup_of
from hmas.controller.core.errors import ModelError
from hmas.controller.core.statistics.step_fit import Step
from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import Profile, load_profile

SHIPPED_FORMULA = Path(__file__).parent / "models" / "llm_pilot" / "formula.json"
_CONTEXT_TOKENS = 500.0
_LOAD = 32
_PROMPT = 1024
_PREFILL_EFFICIENCY = 0.55
_BUSY = 16.0
_SETUP = re.compile(r"(?:(?P<count>[1-9][0-9]?)x)?(?P<gpu>[A-Za-z0-9_-]+)/(?P<model>[A-Za-z0-9._-]+)")


class Formula(msgspec.Struct, frozen=True):
    """Formula and curves.

    Attributes:
        coefficients: Of `terms`, for `ttft` and `itl`.
        curves: By target and configuration: logarithms of users, and of measured over formula there.
    """

    coefficients: dict[str, list[float]]
    curves: dict[str, dict[str, list[tuple[float, float]]]]


def speed_of(profile: Profile) -> Step:
    """Converts a profile to `Step`: a line through decode steps of 1 and of 32 sequences, and a prompt of 1,024 tokens."""
    few, many = (_decode_ms(profile, sequences) for sequences in (1, _LOAD))
    per_seq = max(1e-4, (many - few) / (_LOAD - 1))
    pairs = _PROMPT * (_PROMPT + 1) / 2
    alone = profile.step_duration_s(prefill_tokens=1, prefill_pairs=1, decode_seqs=0, decode_kv_tokens=0, prefill_seqs=1)
    whole = profile.step_duration_s(prefill_tokens=_PROMPT, prefill_pairs=int(pairs), decode_seqs=0, decode_kv_tokens=0, prefill_seqs=1)
    return Step(base_ms=few - per_seq, seq_ms=per_seq, prompt_ms=max(1e-4, 1e3 * (whole - alone) / (_PROMPT - 1)))


def hardware_of(profile: Profile) -> str:
    """Returns a profile's GPUs as a category, such as `2xa100_sxm`."""
    return f"{profile.tp}x{profile.gpu}"[:64]


def prior_of(stated: str) -> tuple[Step, str]:
    """Returns speed and hardware of an engine from its configuration.

    Args:
        stated: Name or path of a performance profile, or GPUs and model such as `2xA100/llama-2-13b`, whose speed then follows from data
            sheets and from LLM-Pilot's measurements on other hardware.

    Raises:
        ModelError: It is neither, or GPU or model are unknown; the message says what is allowed.
    """
    found = _SETUP.fullmatch(stated)
    if found is None or stated.endswith(".json"):
        try:
            profile = load_profile(stated)
        except ProfileError as error:
            raise ModelError(f"{error}; or GPUs and model such as 2xA100/llama-2-13b") from error
        return speed_of(profile), hardware_of(profile)
    count, gpu, model = int(found["count"] or 1), found["gpu"], found["model"]
    setup = setup_of(gpu, count, model)
    base_ms, per_seq_ms = step_line(_formula(), setup)
    return Step(base_ms, per_seq_ms, setup.token_ms / _PREFILL_EFFICIENCY), f"{count}x{gpu.lower()}"


def terms(setups: Sequence[Setup], users: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the terms of times: a step's minimum, and what each user adds by computing, reading and exchanging. One row per entry."""
    own = np.array([(one.read_ms, float(one.split > 1), one.token_ms, one.kv_read_ms, one.exchange_ms, float(one.split)) for one in setups])
    read, several, token, kv_read, exchange, split = own.T
    one = np.ones(len(users))
    return np.column_stack(
        [one, read, several, users, users * token, users * read, users * several, users * kv_read, users * exchange, users * split]
    )


def step_line(formula: Formula, setup: Setup) -> tuple[float, float]:
    """Returns a decode step as a line over the decoding sequences: milliseconds of an empty step, and per sequence."""
    few, many = terms([setup, setup], np.array([1.0, _BUSY])) @ np.array(formula.coefficients["itl"])
    per_seq = max(1e-4, float(many - few) / (_BUSY - 1.0))
    return max(float(few) - per_seq, 0.05 * float(few)), per_seq


def _formula() -> Formula:
    try:
        return msgspec.json.decode(SHIPPED_FORMULA.read_bytes(), type=Formula)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{SHIPPED_FORMULA}: {error}") from error


def _decode_ms(profile: Profile, sequences: int) -> float:
    step_ms, per_token_ms = profile.decode_line(sequences)
    return step_ms + per_token_ms * sequences * _CONTEXT_TOKENS
