"""Combines times and requests: adds importance and SLO (H-MAS Table 6 and Eq. 14), and cuts to an engine's context."""

import numpy as np

from hmas.controller.core.slo import BASE_SLO, IMPORTANCE_MAX, IMPORTANCE_MIN, SPREAD
from hmas.loadgen.streams import stream
from hmas.workloads.columns import TASKS, Column, Floats
from hmas.workloads.options import Options
from hmas.workloads.requests import Requests
from hmas.workloads.table import HASH_TOKENS, Blocks, Workload


def annotate(
    name: str,
    at_s: Floats,
    requests: Requests,
    options: Options,
    *,
    duration_s: float = 0.0,
    session: Column | None = None,
    block_hashes: Blocks | None = None,
    hash_tokens: int = HASH_TOKENS,
) -> Workload:
    """Makes the workload of these times and requests.

    Importance is uniform between 0.5 and 1 (H-MAS E.5), from a separate random stream; the SLO follows from it and the task. If
    `options.context` is given, prompt, output and cap are cut as in `hmas.loadgen.workload.fit`.
    """
    count = len(at_s)
    importance = (IMPORTANCE_MIN + (IMPORTANCE_MAX - IMPORTANCE_MIN) * stream(options.seed, "importance").random(count)).astype(np.float32)
    ttft_ms, tpot_ms = slo_columns(requests.task, importance, options.slo_scale)
    prompt, output, cap = requests.prompt_tokens, requests.output_tokens, requests.max_tokens
    if options.context:
        cap = np.minimum(cap, max(1, options.context // 4))
        prompt = np.clip(prompt, 1, np.maximum(1, int(options.context * 0.95) - cap))
        output = np.clip(output, 1, cap)
        if block_hashes is not None:
            # A cut prompt ends in the block of the cut; later ids would name tokens that it does not have.
            blocks = (-(-prompt // hash_tokens)).tolist()
            block_hashes = tuple(ids[:most] for ids, most in zip(block_hashes, blocks, strict=True))
    return Workload(
        name=name,
        at_s=at_s,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=cap,
        task=requests.task,
        importance=importance,
        slo_ttft_ms=np.full(count, options.ttft_ms) if options.ttft_ms else ttft_ms,
        slo_tpot_ms=np.full(count, options.tpot_ms) if options.tpot_ms else tpot_ms,
        tenant=requests.tenant,
        session=np.full(count, -1) if session is None else session,
        tenants=requests.tenants,
        duration_s=duration_s,
        block_hashes=block_hashes,
        hash_tokens=hash_tokens,
    )


def slo_columns(task: Column, importance: Column, scale: float) -> tuple[Floats, Floats]:
    """`hmas.controller.core.slo.slo_for` for columns: TTFT and TPOT targets by Table 6 and Eq. 14, in whole milliseconds."""
    share = np.clip((importance.astype(float) - IMPORTANCE_MIN) / (IMPORTANCE_MAX - IMPORTANCE_MIN), 0.0, 1.0)
    factor = (1.0 + SPREAD * (1.0 - 2.0 * share)) * scale
    ttft_ms = np.array([BASE_SLO[t].ttft_ms for t in TASKS])[task]
    tpot_ms = np.array([BASE_SLO[t].tpot_ms for t in TASKS])[task]
    return np.maximum(1.0, np.floor(ttft_ms * factor)), np.maximum(1.0, np.floor(tpot_ms * factor))
