"""The answer that a language model may give: its JSON schema and its strict parser (H-MAS C.1, C.2). Pure.

A schema makes an answer well formed, not true, so policy and parameters are checked again against the pool and their ranges. Everything
but one complete answer is a failure with a reason; there are no partial answers.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.agents.meta.candidate import Candidate
from hmas.controller.core.errors import HmasError, PolicyError
from hmas.controller.scheduling.policies.registry import COMMON_PARAMETERS, POLICIES, check_parameters

REASON_CHARS = 120
"""Most characters of the reason. xgrammar, which guides vLLM, fails on a pattern that repeats more than 128 times."""
NUMBER = r"^(-?[0-9]{1,6}|-?[0-9]{1,6}[.][0-9]{1,4})$"
"""Pattern of a parameter's value, as text: a schema cannot limit a JSON number's length, and a model may add digits without end."""
CONFIDENCES = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
QUOTED = 120
"""Characters of a bad answer that an error repeats."""


class AnswerError(HmasError):
    """A model's answer that cannot be used; the message gives the reason."""


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy and its parameters; null leaves one at its default."""

    policy: str
    parameters: dict[str, Annotated[str, Meta(pattern=NUMBER)] | None]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's answer, with the schema's names."""

    reason: Annotated[str, Meta(max_length=REASON_CHARS)]
    choice: Choice
    confidence: Annotated[float, Meta(ge=0.0, le=1.0)]

    def candidate(self, allowed: Sequence[str]) -> Candidate:
        """Returns the proposed candidate.

        Raises:
            AnswerError: The policy may not be proposed, or it does not take a parameter.
        """
        policy = self.choice.policy
        if policy not in allowed:
            raise AnswerError(f"policy is {policy[:QUOTED]!r}; allowed: {', '.join(allowed)}")
        parameters = {name: float(value) for name, value in self.choice.parameters.items() if value is not None}
        try:
            check_parameters(policy, parameters)
        except PolicyError as error:
            raise AnswerError(str(error)) from error
        return Candidate(policy=policy, parameters=parameters)

    @property
    def told(self) -> str:
        """The reason in a form that is safe to print on a terminal."""
        return plain(self.reason)


def schema(allowed: Sequence[str]) -> dict[str, Any]:
    """Builds the JSON schema of an answer from parts that both OpenAI's strict mode and the engines' guided decoding support.

    Each policy has a form of its own, so that no answer of the schema names a parameter twice, or one of another policy.
    """
    # Plain characters only: every engine's grammar supports the length bound, and no log or terminal interprets the characters.
    reason = {"type": "string", "pattern": "^[A-Za-z0-9 .,:;%()+/<>=_-]{1," + str(REASON_CHARS) + "}$"}
    choice = {"anyOf": [_choice(name) for name in allowed]}
    return closed({"reason": reason, "choice": choice, "confidence": {"type": "number", "enum": CONFIDENCES}})


def _choice(policy: str) -> dict[str, Any]:
    value = {"anyOf": [{"type": "null"}, {"type": "string", "pattern": NUMBER}]}
    parameters = closed(dict.fromkeys((*POLICIES[policy].default_parameters, *COMMON_PARAMETERS), value))
    return closed({"policy": {"type": "string", "enum": [policy]}, "parameters": parameters})


def constrained_body(system: str, user: str, form: dict[str, Any], *, name: str, model: str, max_tokens: int) -> bytes:
    """The body of a chat completion whose answer must follow the JSON schema `form`; an empty `model` is the server's own."""
    asked: dict[str, Any] = {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "response_format": {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": form}},
    }
    return msgspec.json.encode(asked | ({"model": model} if model else {}))


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
    """Returns one line of printable characters, which no terminal interprets."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that has exactly these properties, as OpenAI's strict mode asks for."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
