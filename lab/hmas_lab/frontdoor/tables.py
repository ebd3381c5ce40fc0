"""The front door's results as tables, the same for the terminal and for the documentation page. Pure."""

from collections.abc import Mapping
from typing import Any

from hmas_lab.frontdoor.cells import cell_words
from hmas_lab.frontdoor.load import Cell
from hmas_lab.frontdoor.settings import PASS, PLAIN, PRODUCT, STRONG
from hmas_lab.tables import Table, cell, markdown

Document = Mapping[str, Any]
ARM_HEAD = (
    *("load", "arm", "sent", "ended", "good", "TTFT p50 ms", "p95", "max", "TPOT p95 ms"),
    *("refused with Retry-After", "without", "unanswered", "unfinished", "kept"),
)
CELL_HEAD = ("cell", "sent", PASS, PLAIN, PRODUCT, f"over {PASS}", f"over {PLAIN}", "TTFT p50 ms", "p95", "unanswered")


def goals_table(document: Document) -> Table:
    """What is wanted, and what came."""
    rows: list[tuple[str, ...]] = [
        (one["goal"], one["verdict"], str(one["passed"]), str(one["failed"]), str(one["open"]), one["worst"])
        for one in document["summary"]["goals"]
    ]
    title = "Goals; a cell is open where it lies below its bound by less than its uncertainty"
    return Table(title, ("goal", "verdict", "passed", "failed", "open", "worst"), rows)


def loads_table(document: Document) -> Table:
    """All requests of a load together, arm by arm."""
    rows = [(f"{one['load']:g}", *_arm(name, found)) for one in document["summary"]["loads"] for name, found in one["arms"].items()]
    title = f"All requests by load; capacity is {document['capacity_rps']:.2f} good requests/s"
    if document["stretch"] != 1.0:
        title += f"; all targets are stretched by {document['stretch']:g}, because the engine is slow"
    return Table(title, ARM_HEAD, rows)


def rivals_table(document: Document) -> Table:
    """The product beside each other arm on the same requests, and each run by itself where there are several."""
    rows: list[tuple[str, ...]] = [
        (f"{load['load']:g}", name, str(found["good"]), str(found["base"]), _ratio(found), _by_run(document, load["load"], name))
        for load in document["summary"]["loads"]
        for name, found in load["rivals"].items()
    ]
    title = "Good requests of the product beside each other arm; in single runs the product's stand first"
    return Table(title, ("load", "other arm", PRODUCT, "the other", "ratio", "single runs"), rows)


def tuning_table(document: Document) -> Table:
    """What the strong baseline's windows gave on requests of their own; the best of a load is the one that it has there."""
    rows: list[tuple[str, ...]] = [
        (f"{one['load']:g}", str(one["sent"]), ", ".join(f"{count} with {cap}" for cap, count in one["good"].items()))
        for one in document["tuning"]
    ]
    return Table(f"Windows tried for {STRONG}", ("load", "sent", "good"), rows)


def cells_tables(document: Document) -> list[Table]:
    """Every cell of each load: good requests by arm, ratios, and what the product's clients waited for."""
    tables = []
    for load in document["summary"]["loads"]:
        rows = [_cell_row(one) for one in load["cells"]]
        tables.append(Table(f"Good requests by cell at load {load['load']:g}", CELL_HEAD, rows))
    return tables


def worth_table(document: Document) -> Table:
    """What each agent is worth through the door."""
    rows: list[tuple[str, ...]] = []
    for one in document["summary"]["worth"]:
        found = one["with"]
        rows.append((one["agent"], f"{one['load']:g}", str(found["good"]), str(one["good"]), _ratio(found), worth_words(found)))
    return Table(
        "Each agent's worth: good requests with all five, and without it", ("agent", "load", "with", "without", "ratio", "worth"), rows
    )


def worth_words(found: Mapping[str, Any]) -> str:
    """Whether an agent is worth anything, in a word or two."""
    value, half = found["value"], found["half"]
    if value is None:
        return "nothing is good without it" if found["good"] else "nothing is good at all"
    if abs(value - 1.0) <= half or value == 1.0:
        return "nothing that shows"
    return "helps" if value > 1.0 else "harms"


def all_tables(document: Document) -> list[Table]:
    """Every table, in the order of the page; some may have no rows."""
    whole = [goals_table(document), loads_table(document), rivals_table(document), tuning_table(document), worth_table(document)]
    return [*whole, *cells_tables(document)]


def body(document: Document) -> str:
    """What stands between the markers of the page."""
    parts = [markdown(table) for table in all_tables(document) if table.rows]
    if document["left_out"]:
        parts.append("Left out for want of time: " + "; ".join(document["left_out"]) + ".")
    return "\n\n".join(parts)


def _by_run(document: Document, load: float, name: str) -> str:
    made = [one["good"] for one in document["runs"] if one["load"] == load]
    return ", ".join(f"{good[PRODUCT]}:{good[name]}" for good in made)


def _arm(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    waits = ["never" if found[key] is None else cell(found[key], 0) for key in ("ttft_ms_p50", "ttft_ms_p95", "ttft_ms_max")]
    ends = [str(found[key]) for key in ("told", "refused", "unanswered", "unfinished", "kept")]
    return (name, *(str(found[key]) for key in ("sent", "ended", "good")), *waits, cell(found["tpot_ms_p95"], 1), *ends)


def _cell_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    arms, ours = one["arms"], one["arms"][PRODUCT]
    good = [str(arms[name]["good"]) if name in arms else "" for name in (PASS, PLAIN, PRODUCT)]
    ratios = [_ratio(one[over]) if over in one else "" for over in ("over_pass", "over_plain")]
    words = cell_words(Cell(one["form"], one["capped"], one["declared"]))
    waits = ["never" if ours[key] is None else cell(ours[key] or None, 0) for key in ("ttft_ms_p50", "ttft_ms_p95")]
    return (words, str(ours["sent"]), *good, *ratios, *waits, str(ours["unanswered"]))


def _ratio(found: Mapping[str, Any]) -> str:
    if found["value"] is None:
        return ""
    return f"{found['value']:.3f}" + (f" ± {found['half']:.3f}" if found["half"] else "")
