"""Bodies read as the gateway reads them, without a gateway."""

import asyncio

from hmas.controller.core.request_body import Call
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.requests.parse import BodyParser


def no_model() -> str:
    """The model of requests that name none, where there is no such model."""
    return ""


def parsed(path: str, body: bytes) -> Call:
    return asyncio.run(BodyParser().call(path, body, no_model))


def refusal(path: str, body: bytes) -> ApiError | None:
    try:
        parsed(path, body)
    except ApiError as error:
        return error
    return None
