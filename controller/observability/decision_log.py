"""Meta's decisions for operators: the decision, the expectation and the outcome of each. Bounded memory."""

from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec

from hmas.controller.core.messages import DecisionOutcome, MetaDecision, label_of

KEPT = 512
"""Most decisions kept: about an hour and a half at one evaluation every ten seconds."""


class _Kept(NamedTuple):
    """A decision, what was active before it (with parameters and window, where these are known), and its outcome."""

    decision: MetaDecision
    before: str
    outcome: DecisionOutcome | None = None


class DecisionLog:
    """The newest decisions by id, each with its outcome once it is known. Repeats sent as a sign of life are not kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def record(self, message: MetaDecision | DecisionOutcome) -> bool:
        """Stores a decision or an outcome; a second delivery is ignored. Returns whether it was a new decision."""
        if isinstance(message, DecisionOutcome):
            kept = self._kept.get(message.decision_id)
            if kept is not None:
                self._kept[message.decision_id] = kept._replace(outcome=message)
        elif not message.repeats and message.decision_id not in self._kept:
            last = next(reversed(self._kept.values()), None)
            # A decision names the policy before it; its parameters are those of the decision before.
            known = last is not None and last.decision.policy == message.previous and not last.decision.bypass
            self._kept[message.decision_id] = _Kept(message, _label(last.decision) if last is not None and known else message.previous)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return True
        return False

    def newest(self, limit: int, *, changes: bool = False) -> list[dict[str, Any]]:
        """The newest decisions, oldest of them first. `changes`: only decisions that changed something."""
        found = [one for one in self._kept.values() if not changes or _is_change(one.decision)]
        return [_document(one) for one in found[-limit:]] if limit > 0 else []

    def find(self, decision_id: str) -> list[dict[str, Any]]:
        """The decisions that an id may refer to, the newest last: an exact match, else one with this number, else all with this ending.

        If several decisions have the same number, from a meta before and after a restart, the newest one counts.
        """
        if decision_id in self._kept:
            return [_document(self._kept[decision_id])]
        numbered = [one for name, one in self._kept.items() if name.rsplit("-", 1)[-1] == decision_id]
        found = numbered[-1:] or [one for name, one in self._kept.items() if name.endswith(decision_id)]
        return [_document(one) for one in found]


def _label(decision: MetaDecision) -> str:
    return label_of(decision.policy, decision.parameters, decision.n_run, decision.router)


def _document(kept: _Kept) -> dict[str, Any]:
    decision, outcome = kept.decision, kept.outcome
    document: dict[str, Any] = msgspec.structs.asdict(decision)
    document["changed"] = _is_change(decision)
    document["in_force"], document["before"] = _label(decision), kept.before
    document["candidates"] = [
        {"name": label_of(one.policy, one.parameters, one.n_run, one.router), **msgspec.structs.asdict(one)} for one in decision.candidates
    ]
    document["outcome"] = None
    if outcome is not None:
        document["outcome"] = {
            **{name: value for name, value in msgspec.structs.asdict(outcome).items() if name not in {"sent_s", "decision_id"}},
            "regret": outcome.regret if outcome.best else None,
        }
    return document


def _is_change(decision: MetaDecision) -> bool:
    return decision.changed or decision.policy != decision.previous
