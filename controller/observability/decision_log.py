"""Meta's decisions as operators see them: what was decided, what was expected, what came of it. Bounded memory."""

from collections import OrderedDict
from typing import Any

import msgspec

from hmas.controller.core.messages import DecisionOutcome, MetaDecision, label_of

KEPT = 512
"""Decisions kept: at one evaluation every ten seconds about an hour and a half."""


class DecisionLog:
    """The newest decisions by their ids, each with its outcome once it is known. Signs of life are not kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, MetaDecision] = OrderedDict()
        self._outcomes: dict[str, DecisionOutcome] = {}

    def hear(self, message: MetaDecision | DecisionOutcome) -> None:
        """Takes a decision, or what became of one; what is delivered twice counts once."""
        if isinstance(message, DecisionOutcome):
            if message.decision_id in self._kept:
                self._outcomes[message.decision_id] = message
            return
        if message.repeats:
            return
        self._kept[message.decision_id] = message
        while len(self._kept) > KEPT:
            gone, _ = self._kept.popitem(last=False)
            self._outcomes.pop(gone, None)

    def newest(self, limit: int, *, changes: bool = False) -> list[dict[str, Any]]:
        """The newest decisions, oldest of them first. `changes`: only those that changed something."""
        found = [decision for decision in self._kept.values() if not changes or _is_change(decision)]
        return [self._told(decision) for decision in found[-limit:]] if limit > 0 else []

    def find(self, decision_id: str) -> list[dict[str, Any]]:
        """Decisions that an id may mean, the newest last: the one that has it, else that with this number, else all that end so.

        Of several with one number, of a meta before and after a restart, the newest is meant.
        """
        if decision_id in self._kept:
            return [self._told(self._kept[decision_id])]
        numbered = [decision for name, decision in self._kept.items() if name.rsplit("-", 1)[-1] == decision_id]
        found = numbered[-1:] or [decision for name, decision in self._kept.items() if name.endswith(decision_id)]
        return [self._told(decision) for decision in found]

    def _told(self, decision: MetaDecision) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.structs.asdict(decision)
        document["changed"] = _is_change(decision)
        document["in_force"] = label_of(decision.policy, decision.parameters, decision.n_run)
        document["candidates"] = [
            {"name": label_of(one.policy, one.parameters, one.n_run), **msgspec.structs.asdict(one)} for one in decision.candidates
        ]
        outcome = self._outcomes.get(decision.decision_id)
        document["outcome"] = None
        if outcome is not None:
            document["outcome"] = {
                **{name: value for name, value in msgspec.structs.asdict(outcome).items() if name not in {"sent_s", "decision_id"}},
                "regret": outcome.regret if outcome.best else None,
            }
        return document


def _is_change(decision: MetaDecision) -> bool:
    return decision.changed or decision.policy != decision.previous
