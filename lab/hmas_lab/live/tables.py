"""The live comparison as tables and words, the same for the terminal and for the documentation page."""

from collections.abc import Mapping
from typing import Any

from hmas_lab.live.settings import OURS, STRONG
from hmas_lab.tables import Table, cell, markdown, min_max

HEAD = (
    *("arm", "goodput/s", "min..max", "over default", "over strong", "min..max", "verdict"),
    *("short", "long", "Jain", "TTFT p95 started", "TPOT p95 ms", "shed", "ESG/s", "runs"),
)
CONTROLS_HEAD = ("block", "window p10, p50, p90", "guard's factor p10, p50, p90", "kept TTFT", "kept TPOT", "TPOT p50 ms")
GOALS_HEAD = ("goal", "wanted", "median", "min..max", "reached")
Document = Mapping[str, Any]


def arms_table(document: Document) -> Table:
    """One row per arm, by falling goodput."""
    found = document["summary"]
    rows = sorted(found["rows"], key=lambda row: -row["goodput_rps"]["median"])
    noise = found["noise"]
    apart = f"two runs of {STRONG} in one block lay up to {noise:.1%} apart" if noise is not None else "no block tells the noise"
    windows = ", ".join(f"{late}: {window}" for late, window in document["windows"].items())
    field = document["settings"]["field"]
    title = (
        f"{len(document['blocks'])} blocks on a real vLLM, mean load {field['load']:g} of capacity in bursts of {field['high']:g} and "
        f"{field['low']:g}; best windows by treatment of late requests ({windows}); {apart}; "
        f"runs rejected: {sum(row['rejected'] for row in rows)}"
    )
    return Table(title, HEAD, [_row(row) for row in rows])


def goals_table(document: Document) -> Table:
    """What was wanted of H-MAS, and what came."""
    rows: list[tuple[str, ...]] = [
        (one["goal"], f"{one['wanted']:g}", f"{one['found']['median']:.3f}", min_max(one["found"], 3), "yes" if one["reached"] else "no")
        for one in document["summary"]["goals"]
    ]
    return Table("H-MAS against its goals, ratios within blocks", GOALS_HEAD, rows)


def controls_table(document: Document) -> Table:
    """What statera did in H-MAS's run of each block, and how the targets fared."""
    ours = [(block["number"], block["runs"][OURS]) for block in document["blocks"] if OURS in block["runs"]]
    rows: list[tuple[str, ...]] = [
        (
            *(str(number), *_in_force(run.get("controls"))),
            *(f"{run['ttft_compliance']:.3f}", f"{run['tpot_compliance']:.3f}", f"{run['tpot_ms']['p50']:.1f}"),
        )
        for number, run in ours
    ]
    return Table("What statera did under H-MAS, second by second over the scored span", CONTROLS_HEAD, rows)


def _in_force(controls: Mapping[str, Any] | None) -> tuple[str, str]:
    if controls is None:
        return "none", "none"
    window, guard = controls["n_run"], controls["guard"]
    places = ("p10", "p50", "p90")
    return ", ".join(f"{window[p]:.0f}" for p in places), ", ".join(f"{guard[p]:.2f}" for p in places)


def body(document: Document) -> str:
    """The tables for the page."""
    return "\n\n".join(markdown(found(document)) for found in (goals_table, arms_table, controls_table))


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    classes = {name.rpartition("-")[2]: value for name, value in row["classes"].items()}
    return (
        *(row["arm"], f"{row['goodput_rps']['median']:.2f}", min_max(row["goodput_rps"], 2)),
        *(f"{row['over_default']['median']:.3f}", f"{row['over_strong']['median']:.3f}", min_max(row["over_strong"], 3), row["verdict"]),
        *(cell(classes.get(name), 3) for name in ("short", "long")),
        *(cell(row["jain_tenants"], 3), cell(row["ttft_ms_started_p95"], 0), cell(row["tpot_ms_p95"], 1)),
        *(cell(row["shed_rate"], 3), f"{row['esg_rate']['median']:.0f}", str(row["runs"])),
    )
