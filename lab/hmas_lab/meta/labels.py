"""Simulates a drawn workload under each policy of the short list: what meta saw on the way, and which policy it would have wanted."""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from hmas.agents.meta.selectors.rules import choose
from hmas.controller.core.messages import LongView, ShortView
from hmas.controller.core.types import OutcomeKind
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.planning.case import Case
from hmas.planning.running import Run, Watch, run_case
from hmas_lab.meta.draws import Drawn, cases
from hmas_lab.meta.features import SHORT_LIST, features_of

START = DEFAULT_POLICY
"""The configured policy: what is kept unless another is surely better."""
MARGIN = 0.01
"""Share of requests that another policy has to win, as of the twin."""
SURE = 2.0
"""Standard errors that it has to win by."""
VIEWS = 4
"""Views of one run that are kept, evenly over it."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A long view on the way, as features; under which policy, and what the rule map wished there."""

    current: str
    rules: str
    features: list[float]


class Labelled(msgspec.Struct, frozen=True, kw_only=True):
    """A workload with its label.

    Attributes:
        good: Share of requests that kept both targets, by policy.
        best: The label: the start policy unless another is better beyond noise.
    """

    drawn: Drawn
    good: dict[str, float]
    best: str
    seen: list[Seen]


def label(drawn: Drawn) -> Labelled:
    """Runs it under every policy."""
    good: dict[str, float] = {}
    fates: dict[str, dict[str, bool]] = {}
    seen: list[Seen] = []
    for case in cases(drawn, SHORT_LIST):
        fate, views = _run(case)
        fates[case.policy] = fate
        good[case.policy] = sum(fate.values()) / max(1, len(fate))
        step = max(1, len(views) // VIEWS)
        for view in views[::-step][:VIEWS]:
            wished, _ = choose(view, current=case.policy, start=START)
            seen.append(Seen(current=case.policy, rules=wished, features=[round(x, 5) for x in features_of(view, case.policy)]))
    return Labelled(drawn=drawn, good={name: round(share, 5) for name, share in good.items()}, best=_best(good, fates), seen=seen)


def _run(case: Case) -> tuple[dict[str, bool], list[LongView]]:
    views: list[LongView] = []

    def viewed(view: ShortView | LongView) -> None:
        if isinstance(view, LongView):
            views.append(view)

    run = run_case(case, Watch(viewed=viewed))
    return good_by_request(run), [view for view in views if is_scored(view, run)]


def good_by_request(run: Run) -> dict[str, bool]:
    """Whether each request after the warm-up kept both targets."""
    return {
        record.request_id: record.outcome is OutcomeKind.COMPLETED and record.slo_met
        for record in run.records
        if record.arrival_s >= run.case.warmup_s
    }


def is_scored(view: LongView, run: Run) -> bool:
    """Whether a view lies between the warm-up and the last arrival, and something had ended."""
    return run.case.warmup_s <= view.sent_s <= run.records[-1].arrival_s and view.ended > 0


def _best(good: dict[str, float], fates: dict[str, dict[str, bool]]) -> str:
    """The best policy if it is ahead of the start policy by a margin and beyond chance, by the requests whose fate differs."""
    best = max(good, key=lambda name: good[name])
    differ = sum(fates[best][request] != fate for request, fate in fates[START].items())
    error = differ**0.5 / max(1, len(fates[START]))
    return best if good[best] - good[START] > max(MARGIN, SURE * error) else START


def gather(drawn: Iterable[Drawn], rows: Path | None, tell: Callable[[str], None]) -> list[Labelled]:
    """Labels workloads; those that a file holds already are taken from there, others are added to it.

    Raises:
        msgspec.DecodeError: The file holds something else.
    """
    known: dict[Drawn, Labelled] = {}
    if rows is not None and rows.exists():
        found = [msgspec.json.decode(line, type=Labelled) for line in rows.read_bytes().splitlines()]
        known = {one.drawn: one for one in found}
    labelled = []
    for one in drawn:
        if one not in known:
            known[one] = label(one)
            if rows is not None:
                rows.parent.mkdir(parents=True, exist_ok=True)
                with rows.open("ab") as target:
                    target.write(msgspec.json.encode(known[one]) + b"\n")
        labelled.append(known[one])
        shares = ", ".join(f"{name} {share:.1%}" for name, share in known[one].good.items())
        what = f"{one.fleet} {one.kind}{one.shape} at {one.load:g}, slack {one.slack:g}, {one.admission}"
        tell(f"{one.number}: {what}: {shares}: {known[one].best}")
    return labelled
