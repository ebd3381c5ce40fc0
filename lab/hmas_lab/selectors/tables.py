"""The selectors' results as a table, the same for the terminal and for the documentation page. Pure."""

from collections.abc import Mapping
from typing import Any

from hmas_lab.tables import Table, markdown


def scores_table(document: Mapping[str, Any]) -> Table:
    """A row for each selector."""
    rows: list[tuple[str, ...]] = [
        (
            one["selector"],
            ", ".join(f"{policy} {count}" for policy, count in one["chosen"].items()),
            *(f"{one[key]:.0%}" for key in ("by_twin", "in_the_end", "where_needed")),
            f"{one['good']:.1%}",
        )
        for one in document["summary"]
    ]
    took = document["took_s"]
    title = (
        f"{document['model']} at {document['moments']} moments of {document['workloads']} simulated loads: "
        f"{document['usable']} answers can be used; "
        f"time per answer p50 {took['p50']:.1f} s, p90 {took['p90']:.1f} s, longest {took['max']:.1f} s"
    )
    head = (
        *("selector", "what it chose", f"right by the twin ({document['twin_moments']} moments)", "right in the end"),
        *(f"right where what runs is not ({document['needed']} moments)", "good requests with its choices"),
    )
    return Table(title, head, rows)


def body(document: Mapping[str, Any]) -> str:
    """What stands between the markers of the page."""
    return markdown(scores_table(document))
