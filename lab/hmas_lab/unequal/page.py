"""What docs/results-unequal.md shows of the study. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hmas_lab.tables import Table, cell, markdown, plus_minus
from hmas_lab.unequal.settings import FAST, OURS, SLOW

KIND = "unequal"
"""Of the result, and the name of its file."""
HEAD = (
    *("router", "runs", "good", "ended", "TTFT p50, ms", "TTFT p95, ms", "on the fast engine"),
    *(f"good beyond `{OURS}`, points", f"TTFT p50 beyond `{OURS}`, ms", "verdict"),
)


def body(document: Mapping[str, Any]) -> str:
    """The study for the page."""
    return "\n\n".join([*about(document), *map(markdown, tables(document))])


def about(document: Mapping[str, Any]) -> Iterator[str]:
    """What was measured, and on what, in sentences."""
    settings, speeds, capacity = document["settings"], document["speeds"], document["capacity_rps"]
    (ttft_ms, tpot_ms), (tight_ttft_ms, tight_tpot_ms) = document["targets_ms"]
    blocks = document["blocks"]
    yield (
        f"{len(blocks)} of {settings['blocks']} blocks, {settings['seconds']:g} s of arrivals in a run; those of the first "
        f"{settings['warmup_s']:.3g} s are not scored. Machine: {document['machine']['cpus']} cores. "
        f"{_rejected(blocks)} runs were rejected because the machine stood still under them."
    )
    fast, slow = speeds[FAST], speeds[SLOW]
    ratios = ", ".join(f"{block['ratio']:.2f}" for block in blocks)
    yield (
        f"A request alone has its first token after {fast['first_ms']:.0f} ms on the fast engine and {slow['first_ms']:.0f} ms on the slow "
        f"one, and each token after it takes {fast['token_ms']:.1f} and {slow['token_ms']:.1f} ms. The slow one takes "
        f"{document['ratio']:.2f} times as long for an answer; before each block: {ratios}."
    )
    yield (
        f"Targets are stretched by {document['stretch']:g}: TTFT {ttft_ms:,.0f} ms and TPOT {tpot_ms:.0f} ms, or {tight_ttft_ms:,.0f} and "
        f"{tight_tpot_ms:.0f} ms. Capacity in requests/s: {capacity[FAST]:.2f} on the fast engine, {capacity[SLOW]:.2f} on the slow "
        f"one, {sum(capacity.values()):.2f} together."
    )


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """One table for each load."""
    for part in document["summary"]["loads"]:
        yield Table(f"Load {part['load']:g}", HEAD, [_row(name, found) for name, found in part["arms"].items()])


def _row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (f"`{name}`", str(found["runs"]), f"{found['good']} of {found['sent']}", str(found["ended"]))
    times = tuple(cell(found.get(key), 0) for key in ("ttft_ms_p50", "ttft_ms_p95"))
    share = f"{found['to_fast']:.1%}" if found["runs"] else ""
    over = found.get("over_default")
    if not over or not over["blocks"]:
        return (*counts, *times, share, "", "", "")
    return (*counts, *times, share, plus_minus(over["good_share"], 1), plus_minus(over["ttft_ms_p50"], 0), over["verdict"])


def _rejected(blocks: Sequence[Mapping[str, Any]]) -> int:
    return sum(sum(part["rejected"].values()) for block in blocks for part in block["loads"])
