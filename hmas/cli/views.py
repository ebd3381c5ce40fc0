"""`hmas views`: prints the figures that the agents decide by, over both horizons: the last seconds and the last minute."""

from typing import Any

import click

from hmas.cli.admin import takes_client
from hmas.cli.output import clock_words, duration_words, example, json_option, show, table
from hmas.controller.admin.client import AdminClient

NONE = "-"


@click.command(epilog=example("hmas views", "hmas views --json | jq .long.changes"))
@json_option
@takes_client
def views(client: AdminClient, *, as_json: bool) -> None:
    """Print what the agent qos has measured: the short view, which statera acts on, and the long view, which meta decides by."""
    show(client.views(), page, as_json=as_json)


def page(document: dict[str, Any]) -> str:
    """Both views as text."""
    short, long = document["short"], document["long"]
    if short is None and long is None:
        return "qos has sent no view yet; `hmas doctor` says whether it runs"
    rows = [(label, _cell(short, text), _cell(long, text)) for label, text in FIGURES]
    lines = [table(("figure", _head("short", short), _head("long", long)), [row for row in rows if row[1:] != (NONE, NONE)])]
    if short is not None and short["utilization"]:
        engines = [
            (name, f"{value:.2f}", short["utilization_source"].get(name, ""), _percent(short["kv_usage"].get(name)))
            for name, value in short["utilization"].items()
        ]
        lines += ["", table(("engine", "utilization", "given by", "KV cache in use"), engines)]
    lines += ["", *_notes(short or {}, long or {}), SETTLED]
    return "\n".join(lines).rstrip()


def _head(name: str, view: dict[str, Any] | None) -> str:
    if view is None:
        return f"{name}: none yet"
    return f"{name}: {duration_words(view['window_s'])}, {duration_words(view['age_s'])} old"


def _cell(view: dict[str, Any] | None, text: Any) -> str:
    """A figure of a view as text; a hyphen if the view has no such figure."""
    try:
        return NONE if view is None else str(text(view))
    except KeyError:
        return NONE


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def _latency(summary: dict[str, Any]) -> str:
    return f"{summary['p50']:.0f} / {summary['p95']:.0f} / {summary['p99']:.0f}" if summary["count"] else NONE


def _lengths(summary: dict[str, Any]) -> str:
    return f"{summary['p50']:.0f} / {summary['p90']:.0f} / {summary['p99']:.0f}" if summary["count"] else NONE


def _fairness(view: dict[str, Any]) -> str:
    """Jain's index, or that there was nobody to compare."""
    index, tenants = view["fairness"], view["fairness_tenants"]
    return f"{index:.2f} of {tenants}" if tenants >= 2 else "not measured: fewer than two were served"


def _shares(shares: dict[str, float]) -> str:
    newest = sorted(shares.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"{name} {share:.0%}" for name, share in newest) or NONE


FIGURES = (
    ("policy", lambda v: v["policy"]),
    ("requests arrived", lambda v: v["arrived"]),
    ("requests ended, less clients' mistakes and leaves", lambda v: v["ended"]),
    ("arrivals per second", lambda v: f"{v['arrival_rps']:.2f}"),
    ("good requests per second", lambda v: f"{v['goodput_rps']:.2f}"),
    ("miss a target, of those settled", lambda v: _percent(v["violation_rate"])),
    ("  miss TTFT, of those settled", lambda v: _percent(v["ttft_violation_rate"])),
    ("  miss TTFT while they wait, of those settled", lambda v: _percent(v["deadline_miss_share"])),
    ("  miss TPOT, of those that ended", lambda v: _percent(v["tpot_violation_rate"])),
    ("TTFT p50 / p95 / p99 of answers, ms", lambda v: _latency(v["ttft_ms"])),
    ("TPOT p50 / p95 / p99 of answers, ms", lambda v: _latency(v["tpot_ms"])),
    ("waiting", lambda v: v["queued"]),
    ("  past their TTFT target", lambda v: v["overdue"]),
    ("  oldest, ms", lambda v: f"{v['oldest_wait_ms']:.0f}"),
    ("  growth per second", lambda v: f"{v['queue_slope']:+.1f}"),
    ("running", lambda v: v["running"]),
    ("output tokens per second", lambda v: f"{v['throughput_tps']:.0f}"),
    ("tokens asked for beyond those served", lambda v: _percent(v["mismatch"])),
    ("service for requests that were late already", lambda v: _percent(v["late_service"])),
    ("burstiness: variance over mean of arrivals", lambda v: f"{v['arrival_dispersion']:.1f}"),
    ("prompt tokens p50 / p90 / p99", lambda v: _lengths(v["prompt_tokens"])),
    ("output tokens p50 / p90 / p99", lambda v: _lengths(v["output_tokens"])),
    ("service of tenants beside their fair share (Jain)", _fairness),
    ("by task, of those that ended and whose type is known", lambda v: _shares(v["by_task"])),
    ("by tenant, of those that ended", lambda v: _shares(v["by_tenant"])),
)
"""Each figure: its name, and its text from a view that has it."""
SETTLED = (
    "settled: requests that ended within the span, and those that passed their TTFT target while they wait; not what clients caused\n"
    "(malformed requests, clients that left in time). `hmas decisions` counts the same, `hmas status` every request that ended"
)


def _notes(short: dict[str, Any], long: dict[str, Any]) -> list[str]:
    """What stands out in the views."""
    found = [
        f"CONTRADICTION in the telemetry: {name}; it makes meta bypass all control while it lasts" for name in short.get("anomalies", ())
    ]
    for change in long.get("changes", ()):
        what = change["detail"] or change["figure"]
        found.append(f"change of {what} at {clock_words(change['at_s'])}: {change['before']:.3g} -> {change['after']:.3g}")
    if short.get("forced"):
        found.append(f"held by operators: {', '.join(short['forced'])}")
    if short.get("fallbacks"):
        found.append(f"not reported by the engines, so estimated: {', '.join(short['fallbacks'])}")
    faults = [f"{count} {name}" for name, count in short.get("telemetry", {}).items() if count]
    return [*found, *([f"faults in the telemetry since qos started: {', '.join(faults)}"] if faults else [])]
