"""What is shown of statera's studies. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from hmas_lab.statera.responses import GUARDS, SUSTAINED, oscillates
from hmas_lab.tables import Table


def tables(document: Mapping[str, Any]) -> list[Table]:
    """Tables of the parts that are there."""
    made = [make(document[part]) for part, make in (("coverage", _coverage), ("fence", _fence)) if part in document]
    for guard in GUARDS:
        made += [make(document[part], guard) for part, make in (("responses", _responses), ("grid", _grid)) if part in document]
    return [*made, *([_live(document["live"])] if "live" in document else [])]


def _live(found: Mapping[str, Any]) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            one["shape"],
            str(one["run"]),
            one["arm"],
            str(one["sent"]),
            str(one["good"]),
            str(one["ttft_missed"]),
            str(one["tpot_missed"]),
            f"{one['window_least']} / {one['window_median']:g} / {one['window_most']}",
            f"{one['guard_factor_least']:g} / {one['guard_factor_median']:g}",
            str(one["in_flight_most"]),
            f"{one['bound_share']:.0%}",
        )
        for one in found["rows"]
    ]
    head = (
        "shape",
        "run",
        "arm",
        "sent",
        "good",
        "TTFT missed",
        "TPOT missed",
        "window",
        "guard factor",
        "most in flight",
        "full while some waited",
    )
    slo = found["settings"]["slo"]
    about = (
        f"Step, ramp and bursts on a real vLLM with a tiny model, {found['settings']['seconds']:g} s each, capacity "
        f"{found['capacity_rps']:g} good requests/s, targets {slo['ttft_ms']:g} and {slo['tpot_ms']:g} ms, of what came after the change; "
        "window: least, median, most; guard factor: least, median"
    )
    return Table(about, head, rows)


def _coverage(found: Mapping[str, Any]) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            one["scenario"],
            f"{one['epsilon']:g}",
            one["method"],
            f"{one['rate']:.3f}",
            f"{one['after_change']:.3f}",
            f"{one['late']:.3f}",
            f"{one['worst_stretch']:.2f}",
            f"{one['booked_over_real']:.2f}",
        )
        for one in found["rows"]
    ]
    head = ("lengths", "epsilon", "method", "longer than bound", "300 after the change", "from then on", "worst 100", "booked / real")
    about = f"Answers longer than their bound, {found['lengths']} lengths, {found['count']} requests, mean over {len(found['seeds'])} seeds"
    return Table(about, head, rows)


def _fence(found: Mapping[str, Any]) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            one["workload"],
            one["way"],
            f"{one['preemptions_per_1000']:.1f}",
            f"{one['throughput_rps']:.2f}",
            f"{one['goodput_rps']:.2f}",
            f"{one['ttft_ms_p95'] / 1000.0:.1f}",
        )
        for one in found["rows"]
    ]
    head = ("lengths", "way", "preemptions per 1000 answers", "throughput/s", "goodput/s", "TTFT p95, s")
    about = (
        f"Preemptions for want of KV memory, {found['fleet']} with {found['kv_share']:.1%} of its cache at {found['rate_rps']:g} requests/s"
    )
    return Table(f"{about}, mean over {len(found['seeds'])} seeds", head, rows)


def _responses(found: Mapping[str, Any], guard: str) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            one["shape"],
            one["law"],
            f"{one['final']:.1f}",
            f"{one['overshoot']:.0%}",
            "never" if one["settling_s"] is None else f"{one['settling_s']:.0f}",
            f"{one['steady_error']:+.0%}",
            f"{one['amplitude']:.1%}",
            f"{one['tpot_ratio_p95']:.2f}",
            f"{one['goodput_rps']:.2f}",
        )
        for one in found["rows"]
        if one["guard"] == guard
    ]
    head = ("shape", "law", "window", "overshoot", "settles in s", "off the best cap", "amplitude", "TPOT p95 / target", "goodput/s")
    return Table(f"The window after a step, a ramp and bursts of the load, {guard}", head, rows)


def _grid(every: Sequence[Mapping[str, Any]], guard: str) -> Table:
    found = [one for one in every if one["guard"] == guard]
    delays = sorted({one["delay_s"] for one in found})
    slopes = sorted({one["slope"] for one in found})
    by = {(one["slope"], one["delay_s"]): one for one in found}
    rows: list[tuple[str, ...]] = [
        (f"x{slope:g}", *(f"{by[slope, delay]['window']:.0f} ± {by[slope, delay]['amplitude']:.1%}" for delay in delays))
        for slope in slopes
    ]
    swinging = sum(map(oscillates, found))
    verdict = f"{swinging} of {len(found)} swing more" if swinging else "none oscillates"
    about = (
        f"Final window and its amplitude by plant slope and age of the views, {guard}; "
        f"sustained oscillation is {SUSTAINED:.0%} and a request or more: {verdict}"
    )
    return Table(about, ("slope", *(f"{delay:g} s late" for delay in delays)), rows)
