"""Builds the notice for perception from a parsed body, for the gateway and for the training and evaluation of models. Pure."""

from hashlib import blake2b

from msgspec import structs

from hmas.controller.core.messages import RequestNotice
from hmas.controller.core.request_body import Call

DIGEST_BYTES = 8


def session_digest(session: str) -> str:
    """A digest of a conversation's name for agents, because the names that clients choose may identify people. Empty stays empty."""
    if not session:
        return ""
    return blake2b(session.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()


def notice_of(
    call: Call,
    *,
    request_id: str = "",
    sent_s: float = 0.0,
    tenant: str = "",
    session: str = "",
    ttft_slo_ms: float = 0.0,
    tpot_slo_ms: float = 0.0,
    context_tokens: int = 0,
    share_prompts: bool = True,
) -> RequestNotice:
    """Returns the notice of a request from the parsed fields of its body; all else is as in `RequestNotice`.

    `share_prompts` False leaves every text empty; lengths and flags stay.
    """
    notice = RequestNotice(
        request_id=request_id,
        sent_s=sent_s,
        tenant=tenant,
        model=call.model,
        prompt_tokens=call.prompt_tokens,
        prompt_chars=call.prompt_chars,
        excerpt=call.excerpt,
        ttft_slo_ms=ttft_slo_ms,
        tpot_slo_ms=tpot_slo_ms,
        max_output_tokens=call.max_output_tokens or 0,
        has_tools=call.has_tools,
        turns=call.turns,
        images=call.images,
        session=session,
        system=call.system,
        history=call.history,
        question_chars=call.question_chars,
        question_tokens=call.question_tokens,
        tool_results=call.tool_results,
        wants_json=call.wants_json,
        choices=call.sequences,
        context_tokens=context_tokens,
        stream=call.stream,
    )
    return notice if share_prompts else without_texts(notice)


def without_texts(notice: RequestNotice) -> RequestNotice:
    """The notice of a gateway that does not share prompts: only lengths and flags."""
    return structs.replace(notice, excerpt="", system="", history="")
