"""Simulated engines whose TPOT rises more or less steeply with concurrency."""

import msgspec

from hmas.engines.sim.profile import Profile


def steeper(profile: Profile, factor: float) -> Profile:
    """The profile with what each sequence and each token adds to a step times `factor`; the empty step stays as it is."""
    least_ms = profile.token_curve[0][1] if profile.token_curve else 0.0
    return msgspec.structs.replace(
        profile,
        decode_ms_per_seq=profile.decode_ms_per_seq * factor,
        decode_ms_per_kv_ktoken=profile.decode_ms_per_kv_ktoken * factor,
        prefill_ms_per_token=profile.prefill_ms_per_token * factor,
        prefill_ms_per_ktoken_sq=profile.prefill_ms_per_ktoken_sq * factor,
        token_curve=type(profile.token_curve)((tokens, least_ms + (ms - least_ms) * factor) for tokens, ms in profile.token_curve),
    )
