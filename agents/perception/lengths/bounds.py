"""Upper bounds of an answer: a cap, a full context, and the longest answers of a model or to a tenant. Pure, bounded."""

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from hmas.agents.perception.reading import PromptView

GROUPS = 4096
"""Models and tenants remembered; the one longest without an answer is dropped first."""
SETTLED = 50.0
"""Answers after which a bound is, as a logarithm, half way between the start and `MARGIN` times the longest answer."""
MARGIN = 2.0


class LongestAnswers:
    """The longest answers so far, by model and by tenant; `start` tokens for a group without answers."""

    def __init__(self, start: float) -> None:
        self._start = math.log(start)
        self._groups: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def bound(self, groups: Sequence[Hashable]) -> float:
        """Returns the log tokens that no answer to a request in these groups should exceed: the largest of the groups' own bounds."""
        return max(self._of(group) for group in groups)

    def learn(self, groups: Sequence[Hashable], length: float, *, censored: bool = False) -> None:
        """Takes the log length of an answer into account.

        One that a cap has cut off (`censored`) shows only that answers are at least so long: it raises what is known, and is no evidence
        that they are no longer.
        """
        for group in groups:
            longest, answers = self._groups.get(group, (0.0, 0))
            if censored and not answers:
                continue
            self._groups[group] = max(longest, length), answers + (not censored)
            self._groups.move_to_end(group)
        while len(self._groups) > GROUPS:
            self._groups.popitem(last=False)

    def _of(self, group: Hashable) -> float:
        longest, answers = self._groups.get(group, (0.0, 0))
        if not answers:
            return self._start
        grown = longest + math.log(MARGIN)
        return max(grown, self._start + (grown - self._start) * answers / (answers + SETTLED))


def cap_of(view: PromptView) -> float:
    """Returns the log tokens at which the client's cap or the engine's full context cuts the answer off; infinite if neither is known."""
    caps = [view.max_output_tokens] if view.max_output_tokens > 0 else []
    if view.context_tokens > 0:
        # The prompt's length is an estimate, and the sum over all prompts: it may exceed the context although each prompt fits.
        caps.append(max(1, view.context_tokens - max(0, view.prompt_tokens), view.context_tokens // 8))
    return math.log(min(caps)) if caps else math.inf
