"""The outside tools' figures as a table of a documentation page."""

from collections.abc import Mapping
from typing import Any

from hmas_lab.outside.session import ARMS


def body(result: Mapping[str, Any]) -> str:
    """What stands between the markers of the page."""
    summary = result["summary"]
    names = [
        "tool",
        "load",
        "targets TTFT / TPOT",
        "goodput/s direct",
        "pass-through",
        "gateway",
        "in time over direct's (each pair)",
        "goal",
        "P95 TTFT direct",
        "pass-through",
        "gateway",
    ]
    head = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    rows = [_row(row) for row in summary["rows"]]
    notes = [f"- {name} was not measured: {reason}" for name, reason in summary["missing"].items()]
    return "\n".join([about(summary), "", *head, *rows, *([""] if notes else []), *notes])


def about(summary: Mapping[str, Any]) -> str:
    """What was measured, in a sentence."""
    capacities = "; ".join(f"{name}: {rps:.1f} requests/s" for name, rps in summary["capacity_rps"].items())
    return (
        f"Direct, through the gateway in pass-through and through it as it comes, in a drawn order, each alone beside the engine, "
        f"{summary['rounds']} times {summary['seconds']:g} s each, "
        f"{summary.get('prompt_tokens', 128)} tokens in, {summary.get('output_tokens', 32)} out; "
        f"capacity, direct ({summary.get('in_flight', 32)} in flight; by a tool: what it gets answered when it sends as much as that): "
        f"{capacities}."
    )


def _row(row: Mapping[str, Any]) -> str:
    start = f"| {row['tool']} | {row['load']}, {row['rps']:g}/s, {row['model']} | {row['ttft_ms']} / {row['tpot_ms']} ms "
    if "failed" in row:
        return f"{start}| failed: {row['failed']} | | | | | | | |"
    goodput, ttft = row["goodput_rps"], row["ttft_p95_ms"]
    ratio = "no direct goodput" if row["ratio"] is None else f"{row['ratio']:.2f}"
    pairs = ", ".join(f"{pair:.2f}" for pair in row["ratios"])
    goal = "" if row["goal"] is None else f"{row['goal']:.2f}"
    goodputs = " | ".join(f"{goodput[arm]:.2f}" for arm in ARMS)
    ttfts = " | ".join(f"{ttft[arm]:.0f} ms" for arm in ARMS)
    return f"{start}| {goodputs} | {ratio} ({pairs}) | {goal} | {ttfts} |"
