"""A deployment of LLM-Pilot as a profile, and what the simulator says about so many users of it."""

from collections.abc import Mapping

import msgspec

from hmas.engines.sim.profile import Profile
from hmas.profiling.coefficients import Floats
from hmas_lab.fidelity.closed_loop import run_bare, run_closed_loop
from hmas_lab.fidelity.pilot_data import Deployment, Measured, PilotRun
from hmas_lab.fidelity.tgi import TgiEngine

PARAMETERS = (
    "step_ms",
    "decode_ms_per_seq",
    "decode_ms_per_kv_ktoken",
    "prefill_ms_per_token",
    "request_ms",
    "prompt_ms",
    "splice_ms",
    "patience",
    "kv_tokens",
)
"""What is fitted, in the order of a parameter vector."""

LOWER = (0.5, 1e-3, 1e-3, 1e-4, 0.5, 0.05, 0.05, 4.0, 2_000.0)
UPPER = (500.0, 20.0, 100.0, 5.0, 500.0, 500.0, 500.0, 48.0, 1e6)
MAX_MODEL_LEN = 2_000


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted deployment.

    Attributes:
        profile: Its step times and sizes; `request_ms` holds what lies between the open stream and the engine, and the way back.
        opens_ms: Times until a stream is open, as a fitted run shows them.
        prompt_ms, splice_ms, patience: As in `TgiEngine`.
    """

    profile: Profile
    opens_ms: tuple[float, ...]
    prompt_ms: float
    splice_ms: float
    patience: float


def deployed(deployment: Deployment, values: Floats, opens_ms: tuple[float, ...]) -> Deployed:
    """The deployment with these parameters."""
    model, gpu, gpus = deployment
    named = dict(zip(PARAMETERS, (float(f"{value:.5g}") for value in values), strict=True))
    kv_tokens = round(named.pop("kv_tokens"))
    rule = {name: named.pop(name) for name in ("prompt_ms", "splice_ms", "patience")}
    profile = Profile(
        name=f"{gpu}-{gpus}-{model}".lower(),
        gpu=gpu,
        model=model,
        source="Fitted to LLM-Pilot's logs of text-generation-inference (CDLA-Permissive-2.0) by `hmas-lab fidelity`.",
        tp=gpus,
        dtype="float16",
        prefill_ms_per_ktoken_sq=0.0,
        block_size=1,
        kv_blocks=kv_tokens,
        kv_bytes_per_token=1,
        max_num_seqs=100_000,
        max_num_batched_tokens=1 << 20,
        max_model_len=min(MAX_MODEL_LEN, kv_tokens),
        step_ms=named["step_ms"],
        decode_ms_per_seq=named["decode_ms_per_seq"],
        decode_ms_per_kv_ktoken=named["decode_ms_per_kv_ktoken"],
        prefill_ms_per_token=named["prefill_ms_per_token"],
        request_ms=named["request_ms"],
    )
    return Deployed(profile=profile, opens_ms=opens_ms, **rule)


def predict(what: Deployed, run: PilotRun, *, seconds: float, seed: int = 1, bare: bool = False) -> Measured:
    """What the log of a run should show, by the simulator.

    Args:
        what: The fitted deployment.
        run: Gives the number of users and the lengths; its figures are not looked at.
        seconds: Virtual time to simulate.
        seed: The order of the lengths follows from it.
        bare: Take the engine alone (`run_bare`) instead of the whole simulation: the same, and faster.
    """
    engine = TgiEngine(what.profile, prompt_ms=what.prompt_ms, splice_ms=what.splice_ms, patience=what.patience)
    seen = (run_bare if bare else run_closed_loop)(
        engine, run.lengths, users=run.users, seconds=seconds, pauses_ms=what.opens_ms, seed=seed
    )
    return Measured(
        tpot_ms=max(0.1, engine.gap_median_ms()),
        gap_mean_ms=max(0.1, engine.gap_mean_ms()),
        ttft_ms=max(0.1, seen.ttft_ms),
        tokens_per_s=max(1e-3, seen.tokens_per_s),
    )


def errors(predicted: Measured, measured: Measured) -> Mapping[str, float]:
    """Relative errors, signed, by quantity."""
    return {
        "tpot": predicted.tpot_ms / measured.tpot_ms - 1.0,
        "throughput": predicted.tokens_per_s / measured.tokens_per_s - 1.0,
        "ttft": predicted.ttft_ms / measured.ttft_ms - 1.0,
    }
