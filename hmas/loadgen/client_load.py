"""Requests in the bodies of real clients: chats with and without a history, completions, tools, system prompts, unstreamed answers."""

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from hmas.controller.core.client_bodies import EXCHANGES, Shape, client_body
from hmas.controller.core.request_body import read_call
from hmas.controller.core.types import Slo
from hmas.loadgen.prompts import PromptWriter
from hmas.loadgen.streams import Draws, stream
from hmas.loadgen.workload import Arrival, ClientBody

MODEL = "model"
"""Placeholder in a body; the load generator replaces it by the served model."""
POOL = "prose"
"""Pool of prompt templates from which the answers in a history are written."""


class Form(NamedTuple):
    """The parts of a request's body besides its question."""

    shape: Shape
    stream: bool = True
    answers: int = 1


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "chat-1": Form(Shape.CHAT),
        "chat-3": Form(Shape.HISTORY_1),
        "chat-5": Form(Shape.HISTORY_2),
        "chat-9": Form(Shape.HISTORY_4),
        "completion": Form(Shape.COMPLETION),
        "tools": Form(Shape.TOOLS),
        "system-2000": Form(Shape.LONG_SYSTEM),
        "not-streamed": Form(Shape.CHAT, stream=False),
        "n-2": Form(Shape.CHAT, answers=2),
    }
)
"""By name: chats of one, three, five and nine messages, a plain prompt, a chat with tools, one with a system prompt of about 2,000 tokens,
one whose answer is not streamed, one that asks for two answers. Most histories and tools also have a system prompt of a few sentences,
which the name does not count."""


class Terms(NamedTuple):
    """Cap and targets of a client's request.

    Attributes:
        cap: Its `max_tokens`; 0 to send none.
        declares: Whether it declares its targets.
        slo: The targets that the request is judged by.
    """

    cap: int
    declares: bool
    slo: Slo


class Past(NamedTuple):
    """Lengths of the messages in a history: most characters of a question, least and most tokens of an answer."""

    question_chars: int = 600
    answer_tokens: tuple[int, int] = (20, 200)


class Clients:
    """Makes client bodies for arrivals. The same arguments give the same bodies.

    Histories have questions from `texts`, answers of the writer, and lengths of `past`.
    """

    def __init__(self, texts: Sequence[str], writer: PromptWriter, *, seed: int, past: Past = Past()) -> None:  # noqa: B008 - immutable
        self._texts = texts
        self._writer = writer
        self._seed = seed
        self._past = past

    def send(self, arrival: Arrival, index: int, form: str, terms: Terms) -> Arrival:
        """The arrival with the body of a form (one of `FORMS`) and with its client's terms; its kind is the form's name.

        Its last message is the question, and its index sets the random draws.
        """
        shape, streamed, answers = FORMS[form]
        rng = random.Random(f"{self._seed} body {index}")
        path, document = client_body(
            shape,
            arrival.messages[-1].content,
            model=MODEL,
            rng=rng,
            exchanges=self._exchanges(EXCHANGES.get(shape, 0), index),
            max_tokens=terms.cap or None,
            stream=streamed,
            n=answers,
            # Models are trained on the other half of the system prompts.
            holdout=True,
        )
        return msgspec.structs.replace(
            arrival,
            # The body has everything that is sent, so the load plan does not store it twice.
            messages=(),
            prompt_tokens=read_call(path, document).prompt_tokens,
            output_tokens=min(arrival.output_tokens, terms.cap) if terms.cap else arrival.output_tokens,
            max_tokens=terms.cap,
            slo=terms.slo,
            declares=terms.declares,
            kind=form,
            body=ClientBody(path=path, document=document),
        )

    def _exchanges(self, count: int, index: int) -> list[tuple[str, str]]:
        draws = Draws(stream(self._seed, "history", index), batch=64)
        least, most = self._past.answer_tokens
        return [
            (
                self._texts[draws.below(len(self._texts))][: self._past.question_chars],
                self._writer.body(POOL, least + draws.below(most - least + 1), draws),
            )
            for _ in range(count)
        ]
