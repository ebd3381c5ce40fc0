"""Prompts from files as a gateway would show them to perception, in whatever shape a client may send them."""

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from hmas.agents.perception.bodies import view_of_body
from hmas.agents.perception.reading import PromptView
from hmas.controller.core.client_bodies import Shape, client_body
from hmas.controller.core.client_systems import Draws

MODEL = "any"
"""What the bodies name; no reader looks at it."""


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
    path, document = client_body(shape, prompt, model=MODEL, rng=chance, exchanges=exchanges, max_tokens=max_tokens, holdout=holdout)
    return view_of_body(path, document, share_prompts=share_prompts)
