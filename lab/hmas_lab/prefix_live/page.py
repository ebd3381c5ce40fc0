"""What docs/results-prefix.md shows of the live study."""

from collections.abc import Iterator, Mapping
from typing import Any

from hmas_lab.tables import Table, markdown

KIND = "prefix-live"
"""Of the result, and the name of its file."""
HEAD = ("front", "hit rate", "at best", "good answers/s", "by round", "TTFT p50, ms", "TTFT p95, ms", "TPOT p50, ms")


def body(document: Mapping[str, Any]) -> str:
    """The study for the page."""
    settings = document["settings"]
    lacking = [f"Not to be had here: {', '.join(document['missing'])}."] if document["missing"] else []
    ttft_ms, tpot_ms = document["targets_ms"]
    about = (
        f"{settings['users']} users at a time, {settings['rounds']} rounds of {settings['seconds']:g} s for each front, answers of at most "
        f"{document['answer_tokens']} tokens. A good one has its first token within {ttft_ms:g} ms and {tpot_ms:g} ms per token after it."
    )
    fronts = "\n".join(f"- `{name}`: {words}" for name, words in document["fronts"].items())
    return "\n\n".join([*lacking, about, *(markdown(table) for table in tables(document)), f"Fronts:\n\n{fronts}"])


def tables(document: Mapping[str, Any]) -> Iterator[Table]:
    """One table: each front's means."""
    rows: list[tuple[str, ...]] = []
    for name, one in document["summary"].items():
        rounds = " ".join(f"{row['good_rps']:.2f}" for row in document["rows"] if row["front"] == name)
        shares = (f"{one['hit']:.1%}", f"{one['at_best']:.1%}", f"{one['good_rps']:.2f}", rounds)
        rows.append((f"`{name}`", *shares, *(f"{one[key]:,.0f}" for key in ("ttft_ms_p50", "ttft_ms_p95", "tpot_ms_p50"))))
    yield Table("Means over the rounds", HEAD, rows)
