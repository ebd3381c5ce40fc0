"""The answer that a language model may give to an operator's words: its JSON schema, its strict parser, and the question itself. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.agents.meta.selectors.llm_answer import QUOTED, AnswerError, closed, constrained_body
from hmas.intents.times import NOT_NAMED, PATTERN

CHANGES_MOST = 16
MAX_TOKENS = 1024
"""Bound on an answer; one change takes about 30 tokens."""
ACCEPT = "no"
REFUSALS = ("contradiction", "unknown tenant", "out of scope", "unclear")
"""Why a model may refuse the words."""
LEVELS = {"first": 4.0, "more": 2.0, "less": 0.5, "last": 0.25}
"""Words that may stand for a weight, and the factor on the current one."""
UNLIMITED = "unlimited"
VALUE = r"^(first|more|less|last|unlimited|x[0-9]{1,3}|x[0-9]{1,3}[.][0-9]{1,3}|[0-9]{1,10}%?|[0-9]{1,10}[.][0-9]{1,4}%?)$"
"""Pattern of a value, as text: a schema cannot limit a JSON number's length, and a model may add digits without end.
Whole and broken numbers are alternatives, since xgrammar loses the point of an optional group, as in `1([.]5)?`, and admits `15`."""
SETTINGS: Mapping[str, str] = {
    "weight": "share of the service while others wait: who goes first and who may wait",
    "tokens_per_minute": "quota of tokens a minute",
    "burst_tokens": "tokens of that quota at once after a pause",
    "requests_per_minute": "quota of requests a minute",
    "concurrency_share": "largest share of all slots, in %",
    "max_running": "most requests that run at the same time",
    "max_queued": "most requests that wait in the queue",
    "max_body_bytes_waiting": "most bytes of the bodies of requests that wait",
}
"""What an intention may set for a tenant, as the model reads it: all that an override file can set for one."""

TASK = f"""You turn an operator's words about a gateway for language models into settings of its tenants. Answer with JSON only:
refuse: "{ACCEPT}", or why the words cannot be followed: "contradiction" (they contradict each other), "unknown tenant" (they name a tenant
  that is not listed), "out of scope" (they ask for something else than the settings below), "unclear".
changes: one object for each tenant and setting that the words name, and no other; empty if refused.
  value: a number as in the words (for concurrency_share in %, such as 25%), x2 to double and x0.5 to halve what is now, unlimited to lift a
  limit, and for weight also first, more, less or last where the words give no number.
ends: "until 18:00", "until friday noon", "until tomorrow" or "for 2 hours", as in the words; "{NOT_NAMED}" if they name no time.
Settings:
{chr(10).join(f"- {name}: {meaning}" for name, meaning in SETTINGS.items())}
Examples:
"red comes first until six, blue can wait"
{{"refuse":"no","changes":[{{"tenant":"red","setting":"weight","value":"first"}},
{{"tenant":"blue","setting":"weight","value":"last"}}],"ends":"until 6"}}
"no more than 4 requests of blue at once for the next two hours"
{{"refuse":"no","changes":[{{"tenant":"blue","setting":"max_running","value":"4"}}],"ends":"for 2 hours"}}
"halve the token quota of red"
{{"refuse":"no","changes":[{{"tenant":"red","setting":"tokens_per_minute","value":"x0.5"}}],"ends":"{NOT_NAMED}"}}
"restart the engine"
{{"refuse":"out of scope","changes":[],"ends":"{NOT_NAMED}"}}"""


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One setting of one tenant, as the model answers it."""

    tenant: str
    setting: str
    value: Annotated[str, Meta(pattern=VALUE)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's answer, with the schema's names."""

    refuse: str
    changes: Annotated[list[Wanted], Meta(max_length=CHANGES_MOST)]
    ends: Annotated[str, Meta(pattern=PATTERN)]


def read_answer(text: str) -> Answer:
    """Reads an answer.

    Raises:
        AnswerError: It is not one whole JSON object of exactly the schema's members.
    """
    try:
        answer = msgspec.json.decode(text, type=Answer)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise AnswerError(f"the answer is not of the schema: {error}: {text[:QUOTED]!r}") from error
    if answer.refuse not in (ACCEPT, *REFUSALS):
        raise AnswerError(f"refuse is {answer.refuse[:QUOTED]!r}; allowed: {', '.join((ACCEPT, *REFUSALS))}")
    if any(text.endswith("\n") for text in (answer.ends, *(change.value for change in answer.changes))):
        raise AnswerError("the answer is not of the schema: a line ends within a text")  # which `$` in a pattern lets through
    return answer


def schema(tenants: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of an answer about these tenants, at least one."""
    change = {
        "tenant": {"type": "string", "enum": list(tenants)},
        "setting": {"type": "string", "enum": list(SETTINGS)},
        "value": {"type": "string", "pattern": VALUE},
    }
    return closed(
        {
            "refuse": {"type": "string", "enum": [ACCEPT, *REFUSALS]},
            "changes": {"type": "array", "items": closed(change), "maxItems": CHANGES_MOST},
            "ends": {"type": "string", "pattern": PATTERN},
        }
    )


def question(
    words: str, tenants: Mapping[str, Mapping[str, float]], models: Sequence[str], now_s: float, zone: tzinfo | None, *, model: str = ""
) -> bytes:
    """The body of the chat completion that asks for an answer to the operator's words.

    `tenants` has what is in force, by tenant and setting; `models` those that the engines serve. The zone is by default this machine's.
    `model` is the language model's name at its endpoint; empty for the server's own.
    """
    now = datetime.fromtimestamp(now_s, zone)
    rows = [f"- {name}: " + ", ".join(f"{setting} {value:.12g}" for setting, value in held.items()) for name, held in tenants.items()]
    parts = [f"Now it is {now:%A %Y-%m-%d %H:%M}.", "Tenants (0 is no limit, and so is a concurrency_share of 1):", *rows]
    parts += [f"Models (no tenants): {', '.join(models) or 'none'}", "", f'The operator\'s words: "{words}"']
    return constrained_body(TASK, "\n".join(parts), schema(list(tenants)), name="intention", model=model, max_tokens=MAX_TOKENS)
