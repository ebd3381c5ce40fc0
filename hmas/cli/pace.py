"""The speed of an embedded engine."""

import msgspec

from hmas.engines.sim.profile import Profile

_TIMES = (
    "step_ms",
    "prefill_ms_per_seq",
    "prefill_ms_per_token",
    "prefill_ms_per_ktoken_sq",
    "decode_ms_per_seq",
    "decode_ms_per_kv_ktoken",
    "request_ms",
)


def faster(profile: Profile, speed: float) -> Profile:
    """The profile with every time divided by `speed`; sizes and limits are unchanged."""
    if speed == 1.0:
        return profile
    times = {name: getattr(profile, name) / speed for name in _TIMES}
    curve = tuple((tokens, ms / speed) for tokens, ms in profile.token_curve)
    note = f"{profile.source} Run {speed:g} times faster than that."
    return msgspec.structs.replace(profile, source=note, token_curve=curve, swap_gb_per_s=profile.swap_gb_per_s * speed, **times)
