"""The shipped profiles at a glance, as docs/profiles.md shows them."""

import re
from statistics import median

from hmas.engines.sim.profile import Profile, load_profile, profile_names

CONTEXT = 1024
PROMPT = 2048
ERRORS = re.compile(r"decode ([\d.]+)% at the median and ([\d.]+)% at worst .* prefill ([\d.]+)% at the median and ([\d.]+)% at worst")
"""What `compose` writes into `source`."""

HEADER = ("profile", "TPOT of 1, ms", "TPOT of 32, ms", "prefill, tokens/s", "KV, tokens")


def tpot_ms(profile: Profile, seqs: int) -> float:
    """Time of a step in which `seqs` sequences decode over 1024 cached tokens each."""
    ms, ms_per_token = profile.decode_line(seqs)
    return ms + ms_per_token * seqs * CONTEXT


def prefill_tokens_per_s(profile: Profile) -> float:
    """Rate at which one prompt of 2048 tokens is computed in one step."""
    pairs = PROMPT * (PROMPT + 1) // 2
    return PROMPT / profile.step_duration_s(prefill_tokens=PROMPT, prefill_pairs=pairs, decode_seqs=0, decode_kv_tokens=0)


def table() -> list[str]:
    """Lines of a Markdown table of all shipped profiles."""
    lines = [f"| {' | '.join(HEADER)} |", "|" + " --- |" * len(HEADER)]
    for profile in map(load_profile, profile_names()):
        rate = round(prefill_tokens_per_s(profile), -2)
        cells = (
            f"`{profile.name}`",
            f"{tpot_ms(profile, 1):.1f}",
            f"{tpot_ms(profile, 32):.1f}",
            f"{rate:.0f}",
            str(profile.kv_capacity_tokens),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def reduction() -> list[str]:
    """Lines of a Markdown table: how far composed profiles are from the sum of their kernels, by degree, from what their `source` says."""
    by_degree: dict[int, list[list[float]]] = {}
    for profile in map(load_profile, profile_names()):
        found = ERRORS.search(profile.source)
        if found and profile.source.startswith("Composed"):
            by_degree.setdefault(profile.tp, []).append([float(group) for group in found.groups()])
    lines = [
        "| TP | profiles | decode, median of medians (largest) | decode at worst, median (largest) | prefill, median (largest at worst) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for tp, rows in sorted(by_degree.items()):
        middle, worst, prefill, prefill_worst = (list(column) for column in zip(*rows, strict=True))
        cells = (
            f"{median(middle):.1f} % ({max(middle):.1f} %)",
            f"{median(worst):.0f} % ({max(worst):.0f} %)",
            f"{median(prefill):.1f} % ({max(prefill_worst):.0f} %)",
        )
        lines.append(f"| {tp} | {len(rows)} | {' | '.join(cells)} |")
    return lines
