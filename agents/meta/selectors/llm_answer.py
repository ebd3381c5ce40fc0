"""The answer that a language model may give: its JSON schema, and what is read of it, strictly (H-MAS C.1, C.2). Pure.

A schema makes an answer well formed, not true: what it names is checked again against the pool and the ranges of the parameters. Anything
else than one whole answer is a failure in words, never half an answer.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.agents.meta.candidate import Candidate
from hmas.controller.core.errors import HmasError, PolicyError
from hmas.controller.scheduling.policies.registry import COMMON_PARAMETERS, POLICIES, check_parameters

HINTS_MOST = 4
REASON_CHARS = 120
"""Of the reason. xgrammar, which guides vLLM, fails on a pattern that repeats more than 128 times."""
NUMBER = r"^-?[0-9]{1,6}(\.[0-9]{1,4})?$"
"""Of a parameter's value, as text: a JSON number has no end that a schema could set, and a model may go on with digits for ever."""
CONFIDENCES = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
QUOTED = 120
"""Characters of a bad answer that an error repeats."""


class AnswerError(HmasError):
    """A model's answer that cannot be used; says why."""


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter of a policy."""

    name: str
    value: Annotated[str, Meta(pattern=NUMBER)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model says, by the schema's names."""

    reason: Annotated[str, Meta(max_length=REASON_CHARS)]
    policy: str
    parameters: Annotated[list[Parameter], Meta(max_length=HINTS_MOST)]
    bypass: bool
    confidence: Annotated[float, Meta(ge=0.0, le=1.0)]

    def candidate(self, allowed: Sequence[str]) -> Candidate:
        """What it wants in force.

        Raises:
            AnswerError: A policy that may not be proposed, or a parameter that it does not take.
        """
        if self.policy not in allowed:
            raise AnswerError(f"policy is {self.policy[:QUOTED]!r}; allowed: {', '.join(allowed)}")
        parameters = {parameter.name: float(parameter.value) for parameter in self.parameters}
        if len(parameters) != len(self.parameters):
            raise AnswerError("a parameter is named twice; allowed: once")
        try:
            check_parameters(self.policy, parameters)
        except PolicyError as error:
            raise AnswerError(str(error)) from error
        return Candidate(policy=self.policy, parameters=parameters)

    @property
    def told(self) -> str:
        """The reason as it may stand on a terminal."""
        return plain(self.reason)


def schema(allowed: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of an answer, of parts that OpenAI's strict mode and the engines' guided decoding both know.

    Args:
        allowed: Policies that may be proposed, at least one.
    """
    parameters = sorted({parameter for name in allowed for parameter in POLICIES[name].default_parameters} | COMMON_PARAMETERS.keys())
    parameter = _closed({"name": {"type": "string", "enum": parameters}, "value": {"type": "string", "pattern": NUMBER}})
    most = HINTS_MOST if parameters else 0
    # Plain characters only: a length bound that every engine's grammar knows, and nothing that a log or a terminal would act on.
    reason = {"type": "string", "pattern": "^[A-Za-z0-9 .,:;%()+/<>=_-]{1," + str(REASON_CHARS) + "}$"}
    return _closed(
        {
            "reason": reason,
            "policy": {"type": "string", "enum": list(allowed)},
            "parameters": {"type": "array", "items": parameter if parameters else {"type": "string"}, "maxItems": most},
            "bypass": {"type": "boolean"},
            "confidence": {"type": "number", "enum": CONFIDENCES},
        }
    )


def read(text: str) -> Answer:
    """Reads an answer.

    Raises:
        AnswerError: It is not one whole JSON object of exactly the schema's members.
    """
    try:
        return msgspec.json.decode(text, type=Answer)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise AnswerError(f"the answer is not of the schema: {error}: {text[:QUOTED]!r}") from error


def plain(text: str) -> str:
    """One line of printable characters: what a terminal shows and does not act on."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
