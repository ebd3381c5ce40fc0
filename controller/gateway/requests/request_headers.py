"""The claims that a client makes about its own request in headers, checked and limited to what its tenant may have; and new request ids.

`x-llm-d-inference-objective` names a class that only llm-d knows; it is accepted and has no effect here.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hmas.controller.config.section import TenantConfig
from hmas.controller.core.errors import BodyError
from hmas.controller.gateway.errors import ApiError, bad_field

TTFT_HEADERS = ("x-slo-ttft-ms", "x-llm-d-slo-ttft-ms")
TPOT_HEADERS = ("x-slo-tpot-ms", "x-llm-d-slo-tpot-ms")
TTFT_RAISED, TPOT_RAISED = "x-hmas-ttft-target-ms", "x-hmas-tpot-target-ms"
"""Response headers with the target in force, where it is not the one that the client declared."""
SLO_MAX_MS = 3_600_000.0
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
SESSION_ID = re.compile(r"[\x21-\x7e]{1,128}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
TRACESTATE_LIMIT = 512
FORWARDED_LIMIT = 1024
JSON_TYPE = "application/json"
_ID_BYTES = 16
_IDS_AT_ONCE = 64


@dataclass(slots=True)
class Claims:
    """The headers of one request that H-MAS evaluates.

    Attributes:
        ttft_ms: Declared TTFT target after clamping, None if none was declared. Likewise `tpot_ms`.
        request_id: The client's own id, empty if it sent none, or one that cannot be echoed.
        session: The conversation, empty if unknown.
        trace_headers: `traceparent` and `tracestate` for the engine, as far as the client sent valid ones.
        raised: Response headers with the targets that were raised to the tenant's minimum, None if none was.
    """

    ttft_ms: float | None
    tpot_ms: float | None
    request_id: str
    session: str
    trace_headers: dict[str, str]
    raised: dict[str, str] | None = None


def read_claims(headers: Mapping[str, str], limits: TenantConfig) -> Claims:
    """Reads the claims of one request.

    A target below the tenant's minimum is raised to it, and a response header tells so: no request gets a tighter target than its tenant
    may have.

    Raises:
        ApiError: 400 if an SLO header is no number in its range, or the session id has characters that are not allowed.
    """
    ttft_ms = _target(headers, *TTFT_HEADERS)
    tpot_ms = _target(headers, *TPOT_HEADERS)
    session = headers.get("x-session-id", "")
    if session and not SESSION_ID.fullmatch(session):
        raise bad_field("x-session-id", session, "1 to 128 printable ASCII characters without spaces")
    raised: dict[str, str] | None = None
    if ttft_ms is not None and ttft_ms < limits.min_ttft_ms:
        ttft_ms = limits.min_ttft_ms
        raised = {TTFT_RAISED: f"{ttft_ms:g}"}
    if tpot_ms is not None and tpot_ms < limits.min_tpot_ms:
        tpot_ms = limits.min_tpot_ms
        raised = {**(raised or {}), TPOT_RAISED: f"{tpot_ms:g}"}
    return Claims(
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        request_id=client_request_id(headers),
        session=session,
        trace_headers=_trace(headers),
        raised=raised,
    )


def client_request_id(headers: Mapping[str, str]) -> str:
    """The client's `x-request-id` if it can be echoed safely, else an empty text."""
    value = headers.get("x-request-id", "")
    return value if value and REQUEST_ID.fullmatch(value) else ""


def answer_id(headers: Mapping[str, str]) -> str:
    """The `x-request-id` of an answer to a request that is not queued: the client's own, or a new one."""
    return client_request_id(headers) or os.urandom(_ID_BYTES).hex()


def require_json(headers: Mapping[str, str]) -> None:
    """Checks that a body is said to be JSON, and not compressed. A request that says nothing about its body passes.

    Raises:
        ApiError: 415.
    """
    coding = headers.get("content-encoding")
    if coding and coding.strip().lower() != "identity":
        text = str(BodyError("content-encoding", coding, "identity: the gateway reads no compressed bodies"))
        raise ApiError(415, "unsupported_content_encoding", text, param="content-encoding", headers={"accept-encoding": "identity"})
    content_type = headers.get("content-type")
    if content_type and content_type != JSON_TYPE:
        kind = content_type.partition(";")[0].strip().lower()
        if kind and kind != JSON_TYPE and not kind.endswith("+json"):
            text = str(BodyError("content-type", content_type, "application/json"))
            raise ApiError(415, "unsupported_media_type", text, param="content-type", headers={"accept": JSON_TYPE})


def forwarded(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Those of these headers that the client sent, for the engine; long ones are left out."""
    return {name: value for name in names if (value := headers.get(name)) and len(value) <= FORWARDED_LIMIT}


class Ids:
    """Creates request ids: 32 random hexadecimal digits, all of one length so that an engine's `abort` can match them.

    Random bytes are read by the kilobyte: one call to the kernel serves 64 requests.
    """

    __slots__ = ("_at", "_digits")

    def __init__(self) -> None:
        self._digits = ""
        self._at = 0

    def new(self) -> str:
        """Returns an unpredictable id."""
        at = self._at
        if at >= len(self._digits):
            self._digits = os.urandom(_ID_BYTES * _IDS_AT_ONCE).hex()
            at = 0
        self._at = at + 2 * _ID_BYTES
        return self._digits[at : self._at]


def clamp_priority(claimed: int, limits: TenantConfig) -> int:
    """The effective priority: lower goes first, and no request goes before the tenant's best priority."""
    return max(claimed, limits.best_priority)


def _target(headers: Mapping[str, str], name: str, alias: str) -> float | None:
    text = headers.get(name)
    if text is None:
        name, text = alias, headers.get(alias)
        if text is None:
            return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= SLO_MAX_MS:
        raise bad_field(name, text, f"a number of milliseconds, more than 0 and at most {SLO_MAX_MS:.0f}")
    return value


def _trace(headers: Mapping[str, str]) -> dict[str, str]:
    parent = headers.get("traceparent", "")
    if not parent or not TRACEPARENT.fullmatch(parent):
        return {}
    state = headers.get("tracestate", "")
    if state and len(state) <= TRACESTATE_LIMIT:
        return {"traceparent": parent, "tracestate": state}
    return {"traceparent": parent}
