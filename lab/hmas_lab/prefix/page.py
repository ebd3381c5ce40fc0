"""What docs/results-prefix.md shows of the study."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hmas_lab import page as pages
from hmas_lab.prefix.study import GOOD_NOISE, HIT_POINTS, TTFT_NOISE
from hmas_lab.tables import Table, markdown

KIND = "prefix"
"""Of the result, and the name of its file."""
HEAD = ("arm", "hit rate", "in time", "served", "TTFT p50, ms", "TTFT p95, ms", "TPOT p50, ms", "busiest / mean")


def write_page(page: Path, results: Path) -> list[str]:
    """Puts the results that are there into the page; returns their kinds.

    Raises:
        StudyError: As `hmas_lab.page.write_page`.
    """
    return pages.write_page(page, results, {KIND: body}, command="hmas-lab prefix")


def body(document: Mapping[str, Any]) -> str:
    """The study for the page."""
    settings = document["settings"]
    lacking = [f"**A part of the study**, without {', '.join(document['missing'])}."] if document["missing"] else []
    capacity = ", ".join(f"{name} {rps:.1f}" for name, rps in document["capacity_rps"].items())
    about = (
        f"{document['instances']} instances of {document['profile']}, {settings['seeds']} seeds of {settings['requests']:,} requests. "
        f"A load of 1 is the rate at which `round-robin` at arrival serves 90 % of the requests in time, in requests/s: {capacity}."
    )
    workloads = "\n".join(f"- `{name}`: {words}" for name, words in document["workloads"].items())
    arms = "\n".join(f"- `{name}`: {words}" for name, words in document["arms"].items())
    shown = [markdown(table) for table in tables(document)]
    return "\n\n".join([*lacking, about, f"Workloads:\n\n{workloads}", *shown, f"Arms:\n\n{arms}"])


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """The goals, and one table for each place."""
    yield _goals(document)
    for place in document["summary"]:
        rows: list[tuple[str, ...]] = [
            (
                f"`{arm}`",
                f"{one['hit']:.1%}",
                f"{one['good']:.1%}",
                f"{one['served']:.1%}",
                _time(one["ttft_ms_p50"], ",.0f"),
                _time(one["ttft_ms_p95"], ",.0f"),
                f"{one['tpot_ms_p50']:.0f}",
                f"{one['busiest']:.2f}",
            )
            for arm, one in place["arms"].items()
        ]
        best = next(iter(place["arms"].values()))
        title = f"{_place(place)}; an endless cache that all share has {best['hit_at_best']:.1%}"
        yield Table(title[0].upper() + title[1:], HEAD, rows)


def _place(place: Mapping[str, Any]) -> str:
    return f"`{place['workload']}` at {place['load']:g}" + (", one instance away for a twentieth of the time" if place["away"] else "")


def _time(value: float | None, form: str) -> str:
    """A time, or a ratio of two; empty where it is infinite."""
    return "" if value is None else format(value, form)


def _goals(document: Mapping[str, Any]) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            _place(goal),
            f"`{goal['arm']}`",
            f"{100.0 * goal['hit_below_best']:.1f}",
            f"{100.0 * goal['good_over_peers']:+.1f}",
            _time(goal["ttft_p50_over_peers"], ".2f"),
            _time(goal["ttft_p95_over_peers"], ".2f"),
            "yes" if goal["reached"] else "**no**",
        )
        for goal in document["goals"]
    ]
    title = (
        f"Goals: a hit rate at most {100.0 * HIT_POINTS:.0f} points below that of an endless cache, and at least the goodput and TTFT of "
        f"the best peer, each taken by itself, to {100.0 * GOOD_NOISE:g} points and {TTFT_NOISE:.0%}"
    )
    head = ("workload and load", "arm", "hit rate below, points", "in time, points over", "TTFT p50 over", "TTFT p95 over", "met")
    return Table(title, head, rows)
