"""A language model as a selector (H-MAS 3.4.1, C.1, C.2): it receives the long view in numbers, answers by a schema, and is always judged.

This is the paper's own realization of Pi_meta. A late, malformed or disallowed answer counts as none, and the rule map replaces it. An
endpoint that keeps failing gets a pause, longer each time. Every answer passes meta's guards and the twin's judgement, so a bad one costs
no more than the model's time.
"""

from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from hmas.agents.meta.candidate import candidate
from hmas.agents.meta.selectors.base import Pending, Proposal, Reward, Selector, Situation
from hmas.agents.meta.selectors.llm_answer import AnswerError, constrained_body, plain, read, schema
from hmas.agents.meta.selectors.llm_prompt import TASK, question

FAILURES = 2
"""Consecutive failed questions before the endpoint gets a pause."""
REST_S, LONGEST_REST_S = 30.0, 900.0
"""Length of this pause; it doubles from the first value up to the second."""
REMEMBERED = 6
"""Number of recent outcomes in the prompt."""

TOLD_CHARS = 400
"""Most characters of a failure text."""

NO_DEFAULTS: Mapping[str, Mapping[str, float]] = MappingProxyType({})

Ask = Callable[[bytes], str]
"""Sends the body of a chat completion and returns the text of its answer; raises an `HmasError` if there is none."""


class LlmSelector:
    """Asks an endpoint; `instead` proposes if the endpoint gives no answer.

    Args:
        ask: See `Ask`; it may block, because it runs in a thread.
        instead: A selector that answers at once.
        model: Name of the model at the endpoint; empty for the server's own.
        max_tokens: Bound on the answer's tokens.
        defaults: By policy, the values of parameters that an answer leaves out, where they are not the policy's own defaults.

    Attributes:
        ask: As given.
    """

    name = "llm"
    trusted = False

    def __init__(
        self,
        ask: Ask,
        instead: Selector,
        *,
        model: str = "",
        max_tokens: int = 512,
        defaults: Mapping[str, Mapping[str, float]] = NO_DEFAULTS,
    ) -> None:
        self.ask = ask
        self._instead = instead
        self._model = model
        self._max_tokens = max_tokens
        self._defaults = defaults
        self._lately: deque[Reward] = deque(maxlen=REMEMBERED)
        self._failures = 0
        self._rests_until_s = float("-inf")
        self._why = ""

    def propose(self, situation: Situation) -> Proposal | Pending:
        """Asks the model, or falls back and gives the reason."""
        left_s = self._rests_until_s - situation.now_s
        if 0.0 < left_s <= LONGEST_REST_S:
            return self._stand_in(situation, f"left alone for another {left_s:.0f} s: {self._why}")
        body = self.body(situation)
        return Pending(
            compute=lambda: self.ask(body),
            finish=lambda text: self._taken(situation, text),
            failed=lambda why: self._failed(situation, why),
        )

    def learn(self, reward: Reward) -> None:
        """Keeps recent outcomes for the next prompt."""
        self._lately.append(reward)

    def body(self, situation: Situation) -> bytes:
        """The body of the request to the language model."""
        asked = question(situation, list(self._lately), self._defaults)
        return constrained_body(TASK, asked, schema(situation.allowed), name="decision", model=self._model, max_tokens=self._max_tokens)

    def _taken(self, situation: Situation, text: str) -> Proposal:
        try:
            answer = read(text)
            wanted = answer.candidate(situation.allowed)
        except AnswerError as error:
            return self._failed(situation, str(error))
        self._failures = 0
        if wanted.policy == situation.current.policy and not wanted.parameters:
            # Naming the active policy keeps its parameters and window.
            wanted = situation.current
        elif wanted.policy in self._defaults:
            wanted = candidate(wanted.policy, {**self._defaults[wanted.policy], **wanted.parameters})
        return Proposal(candidate=wanted, reason=answer.told or "no reason given", source=self.name, confidence=answer.confidence)

    def _failed(self, situation: Situation, why: str) -> Proposal:
        # The text contains the server's answer, and goes to logs and terminals.
        why = plain(why)[:TOLD_CHARS]
        self._failures += 1
        self._why = why
        if self._failures >= FAILURES:
            rest_s = min(LONGEST_REST_S, REST_S * 2.0 ** min(16, self._failures - FAILURES))
            self._rests_until_s = situation.now_s + rest_s
        return self._stand_in(situation, why)

    def _stand_in(self, situation: Situation, why: str) -> Proposal:
        said = self._instead.propose(situation)
        assert isinstance(said, Proposal), "who stands in for the model answers at once"
        return msgspec.structs.replace(said, reason=f"{said.reason}; the language model is silent: {why}")
