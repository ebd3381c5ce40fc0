"""The outside tools' figures as a table of a documentation page."""

from collections.abc import Mapping
from typing import Any


def body(result: Mapping[str, Any]) -> str:
    """What stands between the markers of the page."""
    summary = result["summary"]
    names = [
        "tool",
        "load",
        "targets TTFT / TPOT",
        "goodput/s direct",
        "gateway",
        "ratio (each pair)",
        "goal",
        "P95 TTFT direct",
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
        f"Direct and through the gateway in turn, {summary['rounds']} times {summary['seconds']:g} s each, 128 tokens in, 32 out; "
        f"capacity (32 in flight, direct): {capacities}."
    )


def _row(row: Mapping[str, Any]) -> str:
    start = f"| {row['tool']} | {row['load']}, {row['rps']:g}/s, {row['model']} | {row['ttft_ms']} / {row['tpot_ms']} ms "
    if "failed" in row:
        return f"{start}| failed: {row['failed']} | | | | | |"
    goodput, ttft = row["goodput_rps"], row["ttft_p95_ms"]
    ratio = "no direct goodput" if row["ratio"] is None else f"{row['ratio']:.2f}"
    pairs = ", ".join(f"{pair:.2f}" for pair in row["ratios"])
    goal = "" if row["goal"] is None else f"{row['goal']:.2f}"
    figures = f"| {goodput['direct']:.2f} | {goodput['gateway']:.2f} | {ratio} ({pairs}) | {goal} "
    return f"{start}{figures}| {ttft['direct']:.0f} ms | {ttft['gateway']:.0f} ms |"
