"""The demo's requests by class: good requests of each run, and the classes in which H-MAS is worse than the best baseline. Pure."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from hmas.cli.output import table
from hmas.demo.live import LiveRun
from hmas.demo.outcome import OURS, DemoResult
from hmas.loadgen.results import Result, is_good

KINDS: Mapping[str, Callable[[Result], str]] = MappingProxyType(
    {
        "body": lambda r: r.kind,
        "max_tokens": lambda r: "sent" if r.capped else "not sent",
        "targets": lambda r: "declared" if r.declared else "not declared",
        "size": lambda r: r.size,
        "tenant": lambda r: r.tenant,
    }
)
"""Functions that sort requests into classes."""


class ClassRow(msgspec.Struct, frozen=True, kw_only=True):
    """One class: its number of requests, and the number of good ones in each run, by the run's name."""

    kind: str
    name: str
    submitted: int
    good: dict[str, int]

    @property
    def best(self) -> tuple[str, int]:
        """The baseline with the most good requests of this class, and their number."""
        baselines = {name: good for name, good in self.good.items() if name != OURS}
        name = max(baselines, key=lambda name: baselines[name])
        return name, baselines[name]

    @property
    def behind(self) -> int:
        """How many good requests H-MAS has less than the best baseline of this class; 0 if it is not worse."""
        return max(0, self.best[1] - self.good[OURS])

    @property
    def words(self) -> str:
        """The class as text."""
        return f"{self.kind} {self.name}"


def class_rows(result: DemoResult) -> list[ClassRow]:
    """Every class of every kind, over the scored requests."""
    scored = {run.variant.name: _scored(run, result.settings.warmup_s) for run in result.runs}
    rows = []
    for kind, read in KINDS.items():
        names = sorted({read(r) for results in scored.values() for r in results})
        for name in names:
            members = {run: [r for r in results if read(r) == name] for run, results in scored.items()}
            rows.append(
                ClassRow(
                    kind=kind,
                    name=name,
                    submitted=len(members[OURS]),
                    good={run: sum(map(is_good, results)) for run, results in members.items()},
                )
            )
    return rows


def class_table(rows: Sequence[ClassRow]) -> str:
    """Good requests of every class, run by run, for a terminal."""
    return table(class_head(rows), [class_cells(row) for row in rows])


def class_head(rows: Sequence[ClassRow]) -> list[str]:
    """The heading for `class_cells`."""
    return ["class", "requests", *rows[0].good, "behind the best baseline"]


def class_cells(row: ClassRow) -> list[str]:
    """One class's cells."""
    return [row.words, str(row.submitted), *map(str, row.good.values()), str(row.behind) if row.behind else ""]


def worse_sentences(rows: Sequence[ClassRow]) -> list[str]:
    """A sentence for each class in which H-MAS is worse than the best baseline, worst first; if there is none, one that says so."""
    behind = sorted((row for row in rows if row.behind), key=lambda row: -row.behind)
    if not behind:
        return ["H-MAS is worse than the best baseline in no class."]
    return [
        f"H-MAS is worse at {row.words}: {row.good[OURS]} of {row.submitted} requests are good, {row.best[1]} under {row.best[0]}."
        for row in behind
    ]


def classes_document(rows: Sequence[ClassRow]) -> dict[str, Any]:
    """The classes for demo.json."""
    return {"classes": msgspec.to_builtins(rows), "worse": [row.words for row in rows if row.behind]}


def _scored(run: LiveRun, warmup_s: float) -> list[Result]:
    return [r for r in run.results if r.at_s >= warmup_s]
