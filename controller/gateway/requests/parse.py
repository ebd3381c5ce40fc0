"""A request's body as it comes from the client. It is parsed once for what the control plane reads and goes to the engine as it came."""

from typing import Any

import orjson

from hmas.controller.core.errors import BodyError
from hmas.controller.core.request_body import Call, read_call
from hmas.controller.core.request_body import read_model as read_model_field
from hmas.controller.gateway.errors import ApiError


def parse_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        ApiError: 400 where it is not JSON, not UTF-8 or not an object; the message says where.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "invalid_json", f"the request body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ApiError(400, "invalid_json", f"the request body is a JSON {_kind(document)}; it must be an object")
    return document


def parse_call(path: str, body: bytes) -> Call:
    """Reads a completion request.

    Raises:
        ApiError: 400 that names the field, its value and what is allowed.
    """
    document = parse_object(body)
    try:
        return read_call(path, document)
    except BodyError as error:
        raise _refused(error) from None


def read_model(document: dict[str, Any]) -> str:
    """The `model` field.

    Raises:
        ApiError: 400 where it is no name.
    """
    try:
        return read_model_field(document)
    except BodyError as error:
        raise _refused(error) from None


def with_priority(call: Call, priority: int) -> bytes:
    """The body with its priority replaced: the one case in which it does not go out byte for byte, because the claim was clamped."""
    return orjson.dumps({**call.document, "priority": priority})


def _refused(error: BodyError) -> ApiError:
    return ApiError(400, "invalid_value", str(error), param=error.field)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)
