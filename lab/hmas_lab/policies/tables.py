"""The results as tables: head and rows of text, the same for the terminal and for the documentation page."""

from collections.abc import Mapping, Sequence
from typing import Any

from hmas_lab.onvllm.tenants import BURSTING, STEADY
from hmas_lab.policies.settings import BASELINE, TWIN
from hmas_lab.policies.sim_figures import MEASURES
from hmas_lab.tables import Table, cell, min_max, plus_minus

Document = Mapping[str, Any]
LIVE_HEAD = (
    *("policy", "goodput/s", "min..max", "over FCFS", "min..max", "verdict"),
    *("short", "long", *STEADY, f"{BURSTING} (bursts)"),
    *("Jain", "worst/best", "TTFT p99 started", "TPOT p95 ms", "shed", "runs"),
)
SIMULATED_HEAD = ("policy", "goodput/s", "over FCFS", "verdict", "short", "long", "Jain", "worst/best", "TTFT p99 started", "shed")
WINS = ("goodput", "short", "long", "fairness", "ttft_p99")
"""Measures whose winners are told."""
TIES_TOLD = 4
MARKS = {"better": " +", "worse": " -"}


def live_table(document: Document) -> Table:
    """One row per policy, by falling goodput over the baseline."""
    found = document["summary"]
    rows = sorted(found["rows"], key=lambda row: -row["over_baseline"]["median"])
    noise = found["noise"]
    apart = f"two runs of {BASELINE} in one block lay up to {noise:.1%} apart" if noise is not None else "no block tells the noise"
    rejected = sum(row["rejected"] for row in rows)
    title = (
        f"{len(document['blocks'])} blocks on a real vLLM, window {document['window']}, late requests {document['late']}, "
        f"mean load {document['settings']['field']['load']:g} of capacity; {apart}; runs rejected: {rejected}"
    )
    return Table(title, LIVE_HEAD, [_live_row(row) for row in rows])


def _live_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    goodput, ratio = row["goodput_rps"], row["over_baseline"]
    classes = {name.rpartition("-")[2]: value for name, value in row["classes"].items()}
    return (
        *(f"{row['policy']}", f"{goodput['median']:.2f}", min_max(goodput, 2)),
        *(f"{ratio['median']:.3f}", min_max(ratio, 3), row["verdict"]),
        *(cell(classes.get(name), 3) for name in ("short", "long")),
        *(cell(row["tenants"].get(name), 3) for name in (*STEADY, BURSTING)),
        *(cell(row["service_jain"], 3), cell(row["service_max_min"], 3), cell(row["ttft_ms_started_p99"], 0)),
        *(cell(row["tpot_ms_p95"], 1), cell(row["shed_rate"], 3), str(row["runs"])),
    )


def live_verdict(document: Document) -> str:
    """What the live comparison says, plainly."""
    rows = [row for row in document["summary"]["rows"] if row["policy"] not in {BASELINE, TWIN}]
    better = sorted((r for r in rows if r["verdict"] == "better"), key=lambda r: -r["over_baseline"]["median"])
    worse = sorted((r for r in rows if r["verdict"] == "worse"), key=lambda r: r["over_baseline"]["median"])
    parts = []
    if better:
        parts.append("better than the baseline in every block and by more than the noise: " + _with_ratios(better))
    else:
        parts.append("ordering buys no goodput here: no policy beats the baseline in every block by more than the noise")
    if worse:
        parts.append("worse likewise: " + _with_ratios(worse))
    even = [row["policy"] for row in rows if row["verdict"] not in {"better", "worse"}]
    if even:
        parts.append("not to be told from it: " + ", ".join(even))
    return "; ".join(parts) + "."


def simulated_tables(document: Document) -> list[Table]:
    """One table per slice and load, by falling goodput."""
    tables = []
    for place in document["summary"]:
        rows = sorted(place["policies"], key=lambda row: -row["goodput"]["mean"])
        failed = "".join(f"; {name} failed: {error}" for name, error in place["failed"].items())
        title = (
            f"{place['slice']} at {place['load']:g} of capacity, window {place['window']}, late requests {document['late']}, "
            f"{place['seeds']} seeds{failed}"
        )
        tables.append(Table(title, SIMULATED_HEAD, [_simulated_row(row) for row in rows]))
    return tables


def _simulated_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    ratio = row["goodput_over_baseline"]
    return (
        *(row["policy"], plus_minus(row["goodput"], 2), plus_minus(ratio, 3), row["goodput"].get("verdict", "baseline")),
        *(plus_minus(row[name], 3) for name in ("short", "long", "fairness", "worst_over_best")),
        *(plus_minus(row["ttft_p99"], 0), plus_minus(row["shed"], 3)),
    )


def matrix(document: Document, measure: str) -> Table:
    """One measure of every policy at every slice and load: goodput over the baseline's, or the measure itself."""
    places = document["summary"]
    cells: dict[str, list[str]] = {}
    for number, place in enumerate(places):
        for row in place["policies"]:
            value = row["goodput_over_baseline"] if measure == "goodput" else row[measure]
            mark = MARKS.get(row[measure].get("verdict", ""), "")
            # A policy that failed in one place still stands in the others' columns.
            cells.setdefault(row["policy"], [""] * len(places))[number] = plus_minus(value, 3) + mark
    title = f"{'goodput over FCFS' if measure == 'goodput' else MEASURES[measure].words}; + and - where the difference to FCFS is sure"
    head = ("policy", *(f"{place['slice']} {place['load']:g}" for place in places))
    return Table(title, head, [(name, *values) for name, values in cells.items()])


def wins_table(document: Document) -> Table:
    """Who wins where, and whether it is sure."""
    head = ("slice", "load", *(MEASURES[name].words for name in WINS))
    rows = [(place["slice"], f"{place['load']:g}", *(_winner(place["wins"][name]) for name in WINS)) for place in document["summary"]]
    return Table("Best by each measure; in brackets those that cannot be told from it", head, rows)


def simulated_verdicts(document: Document) -> list[str]:
    """For each slice and load, whether ordering buys goodput."""
    lines = []
    for place in document["summary"]:
        ratios = {row["policy"]: row["goodput_over_baseline"]["mean"] for row in place["policies"]}
        better = sorted(place["better"], key=lambda name: -ratios[name])
        if better:
            said = "more goodput than FCFS for sure: " + ", ".join(f"{name} {ratios[name]:.3f}" for name in better)
        else:
            best = max(ratios, key=lambda name: ratios[name], default=BASELINE)
            said = f"ordering buys no goodput that can be told from noise (highest mean: {best}, {ratios.get(best, 1.0):.3f})"
        worse = sorted(place["worse"], key=lambda name: ratios[name])
        less = "; less for sure: " + ", ".join(f"{name} {ratios[name]:.3f}" for name in worse) if worse else ""
        lines.append(f"{place['slice']} at {place['load']:g}: {said}{less}.")
    return lines


def _winner(won: Mapping[str, Any]) -> str:
    ties: Sequence[str] = won["ties"]
    if not ties:
        return str(won["policy"])
    told = ", ".join(ties[:TIES_TOLD]) + (f" and {len(ties) - TIES_TOLD} more" if len(ties) > TIES_TOLD else "")
    return f"{won['policy']} ({told})"


def _with_ratios(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{row['policy']} {row['over_baseline']['median']:.3f}" for row in rows)
