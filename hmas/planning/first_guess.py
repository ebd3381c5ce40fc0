"""A rough estimate of the load that one instance holds. Searches start from it; no answer depends on it."""

import numpy as np

from hmas.planning.case import SloTarget
from hmas.planning.fleet import Kind
from hmas.planning.loads import Load


def guess_rps(kind: Kind, load: Load, slo: SloTarget) -> float:
    """Requests per second, all of mean lengths, that one instance serves with the largest steady batch that meets the mean TPOT target.

    In a steady batch of B each request takes part in as many steps as it has output tokens, and is delayed by one prefill per request that
    ends meanwhile: B requests take `output * step(B) + B * prefill`.
    """
    profile = kind.profile
    prompt, output, own_tpot_ms = load.means()
    tpot_ms = slo.tpot_ms or own_tpot_ms
    prefill_ms = profile.prefill_ms_per_token * prompt + profile.prefill_ms_per_ktoken_sq * prompt * prompt / 2.0 * 1e-6
    prefill_ms += profile.curve_ms(int(prompt)) - profile.curve_ms(0)
    held = prompt + output / 2.0
    most = max(1, min(kind.n_run, int(profile.kv_capacity_tokens / held)))
    best = 0.0
    for batch in sorted({*range(1, min(most, 16)), *np.geomspace(1, most, 40).astype(int).tolist()}):
        fixed_ms, token_ms = profile.decode_line(batch)
        all_ms = output * (fixed_ms + token_ms * batch * held) + batch * prefill_ms
        if batch == 1 or all_ms / output <= tpot_ms:
            best = max(best, 1000.0 * batch / all_ms)
    return best
