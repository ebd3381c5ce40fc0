"""From a request to what a reader sees of it: from the gateway's notice, or from a body through the gateway's own reading. Pure."""

from typing import Any

from hmas.agents.perception.reading import PromptView
from hmas.controller.core.messages import RequestNotice
from hmas.controller.core.notices import notice_of
from hmas.controller.core.request_body import read_call


def view_of(notice: RequestNotice) -> PromptView:
    """What a reader may look at; each field has the same name on both sides."""
    return PromptView(**{name: getattr(notice, name) for name in PromptView.__struct_fields__})


def view_of_body(path: str, document: dict[str, Any], *, share_prompts: bool = True) -> PromptView:
    """What a reader would see of a request with this JSON body behind a gateway; every text is empty unless it shares prompts.

    Raises:
        BodyError: The gateway would refuse the body; names the field, its value and what is allowed.
    """
    return view_of(notice_of(read_call(path, document), share_prompts=share_prompts))
