"""How often a language model is right about the written intentions, and what the checks make of its mistakes."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from typing import Any, Literal

import msgspec

from hmas.controller.core.errors import HmasError
from hmas.controller.core.statistics.quantiles import percentile
from hmas.controller.runtime.clock import Clock
from hmas.intents.answer import ACCEPT, question, read_answer
from hmas.intents.plan import plan
from hmas_lab.intents.cases import Case
from hmas_lab.tables import Table

Outcome = Literal["right", "right refusal", "wrong and accepted", "refused though right"]
By = Literal["", "no answer", "form", "model", "checks"]
"""What refused: there was no answer, it was not of the schema, the model refused the words, or the checks refused the answer."""
OUTCOMES: Mapping[Outcome, str] = {
    "right": "exactly what was asked is set",
    "right refusal": "what must be refused is refused",
    "wrong and accepted": "something else is set, or something is set that must be refused",
    "refused though right": "what could be followed is refused",
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one intention.

    Attributes:
        words: The operator's words.
        answer: The model's answer; empty if there was none.
        by: What refused it; empty if it was accepted.
        why: The reason of the refusal.
        took_s: Time for question and answer.
    """

    words: str
    outcome: Outcome
    answer: str
    by: By
    why: str
    took_s: float


def evaluate(cases: Iterable[Case], ask: Callable[[bytes], str], clock: Clock, *, model: str = "") -> list[Verdict]:
    """Asks about each case, one after the other.

    Args:
        cases: What is asked.
        ask: Sends the body of a chat completion and returns the text of its answer; raises an `HmasError` if there is none.
        clock: For the time per answer.
        model: Name of the model at its endpoint.
    """
    found = []
    for case in cases:
        body = question(case.words, case.site.tenants, case.site.models, case.site.now_s, UTC, model=model)
        begun_s = clock.now_s()
        try:
            text, fault = ask(body), ""
        except HmasError as error:
            text, fault = "", str(error)
        found.append(judged(case, text, fault, took_s=clock.now_s() - begun_s))
    return found


def judged(case: Case, text: str, fault: str = "", *, took_s: float = 0.0) -> Verdict:
    """The verdict on an answer, or on its absence for the reason `fault`."""
    by: By = "no answer" if fault else ""
    outcome: Outcome = "right refusal" if case.refusal else "refused though right"
    if not fault:
        try:
            by = "form"
            by = "checks" if read_answer(text).refuse == ACCEPT else "model"
            made = plan(text, case.words, case.site, override_id="intent", author="lab", zone=UTC)
        except HmasError as error:
            fault = str(error)
        else:
            by, outcome = "", "right" if case.holds(made) else "wrong and accepted"
    return Verdict(words=case.words, outcome=outcome, answer=text, by=by, why=fault, took_s=took_s)


def summary(cases: Iterable[Case], verdicts: list[Verdict]) -> dict[str, Any]:
    """The counts, ready for JSON."""
    refusals = sum(bool(case.refusal) for case in cases)
    counts, by = Counter(verdict.outcome for verdict in verdicts), Counter((verdict.outcome, verdict.by) for verdict in verdicts)
    took = sorted(verdict.took_s for verdict in verdicts)
    return {
        "cases": len(verdicts),
        "refusals": refusals,
        "outcomes": {name: counts[name] for name in OUTCOMES},
        "refused_by": {f"{outcome}: {name}": number for (outcome, name), number in sorted(by.items()) if name},
        "took_s": {"p50": round(percentile(took, 50), 2), "p90": round(percentile(took, 90), 2), "max": round(took[-1], 2)},
    }


def outcome_table(document: Mapping[str, Any]) -> Table:
    """The table of outcomes."""
    found, told = document["summary"], document["summary"]["refused_by"]
    rows: list[tuple[str, ...]] = []
    for name, meaning in OUTCOMES.items():
        by = [f"{number} by {key.split(': ')[1]}" for key, number in told.items() if key.startswith(f"{name}: ")]
        rows.append((name, meaning, str(found["outcomes"][name]), ", ".join(by)))
    took = found["took_s"]
    title = (
        f"{document['model']}: {found['cases'] - found['refusals']} intentions that can be followed, "
        f"{found['refusals']} that must be refused; "
        f"time per answer p50 {took['p50']:.1f} s, p90 {took['p90']:.1f} s, longest {took['max']:.1f} s"
    )
    return Table(title, ("outcome", "meaning", "of 100", "refused by"), rows)
