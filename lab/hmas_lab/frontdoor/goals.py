"""Whether the product reaches what is wanted of it in every cell. Pure."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from hmas.loadgen.results import Result
from hmas_lab.frontdoor.cells import Ratio, cell_of, cell_words, figures, first_token_ms_beyond, grouped, ms_words, ratio
from hmas_lab.frontdoor.settings import GOALS, OVER_PLAIN, PASS, PLAIN, PRODUCT, QUICK_LEAST, QUICK_SPARED

Verdict = Literal["pass", "fail", "open"]
"""`open`: nearer to the bound than the uncertainty of so few requests, or where all of them together would not reach it."""
ByLoad = Mapping[float, Mapping[str, Sequence[Result]]]
"""Results of all repetitions by load and arm; at the same place the same request."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One goal: what was wanted, in how many cells it is reached, missed or open, and the worst of them."""

    goal: str
    passed: int
    failed: int
    open: int
    worst: str = ""

    @property
    def verdict(self) -> Verdict:
        """Of all cells together."""
        return "fail" if self.failed else "open" if self.open else "pass"


def judged(found: Ratio, least: float) -> Verdict:
    """A cell's ratio against its bound."""
    if found.value is None or found.value - found.half >= least:
        return "pass"
    return "open" if found.value + found.half >= least else "fail"


def outcomes(by_load: ByLoad) -> list[Outcome]:
    """Every goal over all loads that were run."""
    found = []
    for load, arms in by_load.items():
        goal = GOALS.get(load)
        if goal is not None and PASS in arms:
            text = f"load {load:g}: goodput at least {goal.least:g} of pass-through"
            found.append(_ratios(f"{text} in every cell", arms, PASS, goal.least) if goal.cells else _overall(text, arms, goal.least))
            if goal.ttft_ms is not None:
                found.append(
                    _first_tokens(
                        f"load {load:g}: first tokens within {goal.ttft_ms:g} ms of pass-through, median over requests", arms, goal.ttft_ms
                    )
                )
        if PLAIN in arms:
            text = f"load {load:g}: goodput at least {OVER_PLAIN:g} of {PLAIN} in every cell"
            found.append(_ratios(text, arms, PLAIN, OVER_PLAIN))
    ours = [figures(arms[PRODUCT]) for arms in by_load.values()]
    found.append(_counts("no request unanswered", [one.unanswered for one in ours]))
    found.append(_counts("no refusal without Retry-After", [one.refused for one in ours]))
    found.append(_counts("none kept for more than 30 s beyond its deadline", [one.kept for one in ours]))
    return found


def quick_failures(by_load: ByLoad) -> list[str]:
    """What fails the short form, in words: a form, a cap or none, or declared targets or none that lose goodput far below capacity."""
    failures = []
    for load, arms in by_load.items():
        if PASS not in arms:
            continue
        ours, theirs = figures(arms[PRODUCT]), figures(arms[PASS])
        if ours.unanswered > theirs.unanswered:
            failures.append(f"load {load:g}: {ours.unanswered} of {ours.sent} requests unanswered")
        if load > 0.5:
            continue
        for name, key in (("all", _everything), ("form", _form), ("max_tokens", _capped), ("targets", _declared)):
            mine, base = grouped(arms[PRODUCT], key), grouped(arms[PASS], key)
            for group, results in mine.items():
                found = ratio(results, base[group])
                if found.value is not None and found.value < QUICK_LEAST and found.base - found.good > QUICK_SPARED:
                    failures.append(f"load {load:g}, {name} {group}: {found.good} good requests beside {found.base} in pass-through")
    return failures


def _everything(_result: Result) -> str:
    return "requests"


def _form(result: Result) -> str:
    return result.kind


def _capped(result: Result) -> str:
    return "sent" if result.capped else "not sent"


def _declared(result: Result) -> str:
    return "declared" if result.declared else "not declared"


def _ratios(text: str, arms: Mapping[str, Sequence[Result]], other: str, least: float) -> Outcome:
    mine, base = grouped(arms[PRODUCT], cell_of), grouped(arms[other], cell_of)
    found = {cell: ratio(results, base[cell]) for cell, results in mine.items()}
    verdicts = [judged(one, least) for one in found.values()]
    known = [(one.value, cell, one) for cell, one in found.items() if one.value is not None]
    worst = min(known, key=lambda item: item[0], default=None)
    return Outcome(
        goal=text,
        passed=verdicts.count("pass"),
        failed=verdicts.count("fail"),
        open=verdicts.count("open"),
        worst="" if worst is None else f"{cell_words(worst[1])}: {worst[2].good} beside {worst[2].base}",
    )


def _overall(text: str, arms: Mapping[str, Sequence[Result]], least: float) -> Outcome:
    found, sent = ratio(arms[PRODUCT], arms[PASS]), len(arms[PRODUCT])
    verdict, words = judged(found, least), f"all requests: {found.good} beside {found.base}"
    if sent < least * found.base:
        # The load was too light to tell: pass-through serves so many that no arm could reach the bound.
        verdict, words = "open", f"{words}; all {sent} that were sent would be {sent / found.base:.2f} times"
    counts = {"passed": int(verdict == "pass"), "failed": int(verdict == "fail"), "open": int(verdict == "open")}
    return Outcome(goal=text, **counts, worst=words)


def _first_tokens(text: str, arms: Mapping[str, Sequence[Result]], most_ms: float) -> Outcome:
    ours, theirs = figures(arms[PRODUCT]), figures(arms[PASS])
    beyond = first_token_ms_beyond(arms[PRODUCT], arms[PASS])
    words = f"medians of {ms_words(ours.ttft_ms_p50, 1)} beside {ms_words(theirs.ttft_ms_p50, 1)}"
    if beyond is None:
        return Outcome(goal=text, passed=0, failed=0, open=1, worst="no request has a first token in both arms")
    passed, missed = beyond.median <= most_ms, beyond.low > most_ms
    words = f"{beyond.median:+.1f} ms ({beyond.low:+.1f} to {beyond.high:+.1f}); {words}"
    return Outcome(goal=text, passed=int(passed), failed=int(missed), open=int(not (passed or missed)), worst=words)


def _counts(text: str, counts: Sequence[int]) -> Outcome:
    total = sum(counts)
    return Outcome(goal=text, passed=int(not total), failed=int(total > 0), open=0, worst=f"{total} of all requests")
