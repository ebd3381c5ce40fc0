"""From a request to what a reader sees of it: from the gateway's notice, or from a body through the gateway's own reading. Pure."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import orjson

from hmas.agents.perception.reading import PromptView
from hmas.controller.core.client_bodies import Shape, client_body
from hmas.controller.core.client_systems import Draws
from hmas.controller.core.errors import BodyError
from hmas.controller.core.messages import RequestNotice
from hmas.controller.core.notices import notice_of
from hmas.controller.core.request_body import read_call

ANY_MODEL = "any"
"""What bodies made here name; no reader looks at it."""


def view_of(notice: RequestNotice) -> PromptView:
    """What a reader may look at."""
    return PromptView(
        excerpt=notice.excerpt,
        system=notice.system,
        history=notice.history,
        prompt_chars=notice.prompt_chars,
        prompt_tokens=notice.prompt_tokens,
        question_chars=notice.question_chars,
        question_tokens=notice.question_tokens,
        has_tools=notice.has_tools,
        tool_results=notice.tool_results,
        wants_json=notice.wants_json,
        turns=notice.turns,
        images=notice.images,
        max_output_tokens=notice.max_output_tokens,
        choices=notice.choices,
        context_tokens=notice.context_tokens,
    )


def view_of_body(path: str, document: dict[str, Any] | bytes, *, share_prompts: bool = True) -> PromptView:
    """What a reader would see of a request with this body behind a gateway.

    Args:
        path: API path.
        document: The JSON body, parsed or as bytes.
        share_prompts: As in the gateway's configuration; False leaves every text empty.

    Raises:
        BodyError: The gateway would refuse the body; names the field, its value and what is allowed.
    """
    if isinstance(document, bytes):
        try:
            document = orjson.loads(document)
        except orjson.JSONDecodeError as error:
            raise BodyError("body", document, f"a JSON object ({error})") from None
    if not isinstance(document, dict):
        raise BodyError("body", document, "a JSON object")
    return view_of(notice_of(read_call(path, document), share_prompts=share_prompts))


def view_of_prompt(
    prompt: str,
    shape: Shape = Shape.CHAT,
    *,
    rng: Draws | None = None,
    exchanges: Sequence[tuple[str, str]] = (),
    max_tokens: int | None = None,
    holdout: bool = False,
    share_prompts: bool = True,
) -> PromptView:
    """What a reader sees of a prompt that a client sends in this shape: a real body, read as the gateway reads it.

    Args:
        prompt: What is asked.
        shape: What comes along with it.
        exchanges: As in `hmas.controller.core.client_bodies.client_body`.
        max_tokens: The client's cap.
        holdout: Whether system prompts are those kept for judging.
        rng: Where chance comes from; without one it is drawn from prompt and shape, so that the same prompt gives the same view.
        share_prompts: False leaves every text empty.
    """
    chance = np.random.default_rng(crc32(f"{shape}:{prompt}".encode("utf-8", "replace"))) if rng is None else rng
    path, document = client_body(shape, prompt, model=ANY_MODEL, rng=chance, exchanges=exchanges, max_tokens=max_tokens, holdout=holdout)
    return view_of_body(path, document, share_prompts=share_prompts)
