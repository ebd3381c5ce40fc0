"""What docs/results-heteroserve.md shows of the study."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hmas_lab import page as pages
from hmas_lab.hetero.arms import ARMS
from hmas_lab.hetero.figures import JUDGED, Places, at, scaling_r2, value
from hmas_lab.hetero.load import DISTRIBUTIONS
from hmas_lab.hetero.study import GROWN, SWEPT
from hmas_lab.tables import Table, markdown

KIND = "heteroserve"
"""Of the result, and the name of its file."""
_KINDS = ("H100", "A100", "L40S")


def write_page(page: Path, results: Path) -> list[str]:
    """Puts the results that are there into the page; returns their kinds.

    Raises:
        StudyError: As `hmas_lab.page.write_page`.
    """
    return pages.write_page(page, results, {KIND: body}, command="hmas-lab heteroserve")


def body(document: Mapping[str, Any]) -> str:
    """The study for the page."""
    about = "\n".join(f"- `{name}`: {words}" for name, words in document["arms"].items())
    lacking = [f"**A part of the study.** Runs that are missing: {document['missing']}."] if document["missing"] else []
    return "\n\n".join(
        [
            *lacking,
            _about(document),
            *(markdown(table) for table in tables(document) if table.rows),
            f"Arms:\n\n{about}",
        ]
    )


def _about(document: Mapping[str, Any]) -> str:
    settings, kinds = document["settings"], document["saturation_rps_by_gpu"]
    saturation = "; ".join(
        f"{name} {rps:.1f} ({', '.join(f'{gpu} {one:.2f}' for gpu, one in kinds[name].items())})"
        for name, rps in document["saturation_rps"].items()
    )
    return (
        f"{settings['seeds']} seeds of {settings['requests']:,} requests on 8 devices. Saturation of 8 devices, and of one of each kind, "
        f"in requests/s: {saturation}. The paper's is {document['paper_rate_rps']}."
    )


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """Every table of the study; those without a row have nothing to show."""
    places = document["summary"]
    yield goals_table(document)
    for load in (1.0, 0.9):
        place = at(places, load=load)
        if place is not None:
            yield _side_by_side(place)
    yield _swept("SLO attainment by load", places, [(f"{load:g}", at(places, load=load)) for load in _loads(places)], "slo", ".1%")
    yield _swept("Tokens/s by load", places, [(f"{load:g}", at(places, load=load)) for load in _loads(places)], "tokens_per_s", ",.0f")
    columns = [(f"{name} {load:g}", at(places, name, load)) for name in DISTRIBUTIONS for load in (0.9, 1.0)]
    yield _swept("SLO attainment by distribution and load", places, columns, "slo", ".1%")
    yield _swept("P95 TTFT in ms by distribution and load", places, columns, "ttft_ms_p95", ",.0f")
    yield _sizes(places)


def _loads(places: Places) -> list[float]:
    return sorted({place["load"] for place in places if place["distribution"] == "lognormal" and place["devices"] == 8})


def goals_table(document: Mapping[str, Any]) -> Table:
    """Goals, for the product as it comes and for its router alone."""
    rows: list[tuple[str, ...]] = [
        (
            goal["goal"],
            f"`{goal['arm']}`",
            _told(goal["goal"], goal["ours"]),
            _told(goal["goal"], goal["wanted"]),
            "yes" if goal["reached"] else "**no**",
        )
        for goal in document["goals"]
    ]
    return Table("Goals", ("goal", "arm", "reached", "wanted", "met"), rows)


def _told(goal: str, figure: float) -> str:
    if "SLO" in goal:
        return f"{100.0 * figure:+.1f} points"
    return f"{figure:.4f}" if goal.startswith("R2") else f"{figure:.3g}"


def _side_by_side(place: Mapping[str, Any]) -> Table:
    rows = []
    for arm in place["arms"]:
        paper = place["paper"].get(arm, {})
        shares = " / ".join(f"{place['arms'][arm]['by_gpu'][kind]:.0%}" for kind in _KINDS)
        figures = [
            _cell(place, arm, name, form) + (f" ({paper[name]:{form}})" if paper.get(name) is not None else "")
            for name, form in (("tokens_per_s", ",.0f"), ("slo", ".1%"), ("ttft_ms_p95", ",.0f"))
        ]
        rows.append((f"`{arm}`", *figures, _cell(place, arm, "ttft_ms_p50", ",.0f"), _cell(place, arm, "served", ".1%"), shares))
    head = ("arm", "tokens/s", "TTFT within 500 ms", "P95 TTFT, ms", "P50 TTFT, ms", "served", " / ".join(_KINDS))
    title = f"At {place['load']:g} of saturation, in brackets the paper's figures; a request that is not served counts in the P95"
    return Table(title, head, rows)


def _swept(title: str, places: Places, columns: Sequence[tuple[str, Mapping[str, Any] | None]], figure: str, form: str) -> Table:
    there = [(name, place) for name, place in columns if place is not None]
    if len(there) < 2 or not places:
        return Table(title, ("arm",), [])
    rows = [(f"`{arm}`", *(_cell(place, arm, figure, form) for _, place in there)) for arm in SWEPT if arm in ARMS]
    return Table(title, ("arm", *(name for name, _ in there)), rows)


def _sizes(places: Places) -> Table:
    sizes = sorted(place["devices"] for place in places if place["distribution"] == "lognormal" and place["load"] in (1.0, 0.9))
    rows = []
    for size in dict.fromkeys(sizes):
        place = at(places, devices=size) or at(places, load=0.9, devices=size)
        assert place is not None
        tokens = [_cell(place, arm, "tokens_per_s", ",.0f") for arm in GROWN]
        slo = [_cell(place, arm, "slo", ".1%") for arm in GROWN]
        rows.append((f"{size}", f"{place['load']:g}", *tokens, *slo, _cell(place, JUDGED[0], "cpu_us", ",.0f")))
    r2 = [f"`{arm}` {found:.4f}" for arm in GROWN if (found := scaling_r2(places, arm)) is not None]
    title = f"Size of the cluster (R2 of the line through those at 1.0 of saturation: {', '.join(r2)})" if r2 else "Size of the cluster"
    head = ("devices", "load", *(f"tokens/s, `{arm}`" for arm in GROWN), *(f"in time, `{arm}`" for arm in GROWN), "CPU of a request, µs")
    return Table(title, head, rows)


def _cell(place: Mapping[str, Any], arm: str, figure: str, form: str) -> str:
    found = value(place, arm, figure)
    return "" if found is None else format(found, form)
