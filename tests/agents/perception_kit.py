"""What tests of perception share: a request for a summary, and how it ended."""

from typing import Any

from message_kit import completed, request_notice

from hmas.controller.core.messages import Completion, RequestNotice

SUMMARY = "Summarize this article: the council met and talked about the bridge"


def notice(request_id: str = "r", excerpt: str = SUMMARY, **changes: Any) -> RequestNotice:
    return request_notice(request_id, excerpt=excerpt, **changes)


def completion(request_id: str, output_tokens: int, **changes: Any) -> Completion:
    return completed(request_id, **({"prompt_tokens": 300, "output_tokens": output_tokens} | changes))
