"""The agents' decisions in one run, as sentences: those of a kind together, the changes of policy one by one."""

from collections.abc import Sequence
from itertools import groupby

from hmas.demo.live import Decision, LiveRun

POLICY = ("policy", "bypass")


def told(run: LiveRun) -> list[Decision]:
    """Meta's decisions and every change that the gateway made for an agent, in order of time."""
    return sorted([*run.verdicts, *run.decisions], key=lambda d: d.at_s)


def decision_sentences(run: LiveRun) -> list[str]:
    """What the agents decided: meta's decisions in order of time, then the changes of each knob and engine, a sentence for each group."""
    policy = sorted((d for d in run.verdicts if d.kind in POLICY), key=lambda d: d.at_s)
    sentences: list[str] = []
    for changes, group in groupby(policy, lambda d: d.before != d.after):
        found = list(group)
        sentences += map(_switch, found) if changes else [_kept(found)]
    knobs = sorted((d for d in run.decisions if d.kind.startswith("knobs.")), key=lambda d: (d.kind, d.subject, d.at_s))
    return [*sentences, *(_moved(list(group)) for _, group in groupby(knobs, lambda d: (d.kind, d.subject)))]


def _switch(one: Decision) -> str:
    return f"At {one.at_s:.1f} s meta changed {one.before} to {one.after}: {one.reason}."


def _kept(found: Sequence[Decision]) -> str:
    first, last = found[0], found[-1]
    if len(found) == 1:
        return f"At {first.at_s:.1f} s meta looked at {first.after} and kept it: {first.reason}."
    span = f"Between {first.at_s:.1f} and {last.at_s:.1f} s"
    return f"{span} meta looked at {last.after} {len(found)} times and kept it; the newest reason: {last.reason}."


def _moved(found: Sequence[Decision]) -> str:
    """All changes of one knob of one instance."""
    first, last = found[0], found[-1]
    what = f"{last.kind.removeprefix('knobs.')} of {last.subject}"
    if len(found) == 1:
        return f"At {first.at_s:.1f} s {last.source} set {what} from {first.before or 'nothing'} to {last.after}: {last.reason}."
    span = f"Between {first.at_s:.1f} and {last.at_s:.1f} s"
    values = [value for one in found if (value := _number(one.after)) is not None]
    between = f", between {min(values):g} and {max(values):g} meanwhile" if len(set(values)) > 1 else ""
    change = f"from {first.before or 'nothing'} to {last.after}{between}"
    return f"{span} {last.source} changed {what} {len(found)} times, {change}; the newest reason: {last.reason}."


def _number(text: str) -> float | None:
    """The value in a text such as `24 (statera)`; None if it has none."""
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return None
