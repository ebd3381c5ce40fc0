"""Parsing of request bodies. A body is parsed once for the control plane and sent to the engine as it came."""

from collections.abc import Callable
from typing import Any

import orjson

from hmas.controller.core.errors import BodyError
from hmas.controller.core.request_body import Call, read_call
from hmas.controller.core.request_body import read_model as read_model_field
from hmas.controller.gateway.errors import ApiError


def parse_object(body: bytes) -> dict[str, Any]:
    """Returns the body as a JSON object.

    Raises:
        ApiError: 400 if it is not JSON, not UTF-8 or not an object; the message names the place.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "invalid_json", f"the request body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ApiError(400, "invalid_json", f"the request body is a JSON {_kind(document)}; it must be an object")
    return document


def parse_call(path: str, body: bytes, only_model: Callable[[], str] | None = None) -> Call:
    """Reads a completion request; `only_model` tells the model of a request that names none, if there is one.

    Raises:
        ApiError: 400; the message names the field, its value and the allowed values.
    """
    document = parse_object(body)
    try:
        return read_call(path, document, _only(document, only_model))
    except BodyError as error:
        raise _refused(error) from None


def read_model(document: dict[str, Any], only_model: Callable[[], str] | None = None) -> str:
    """Returns the `model` field; `only_model` tells the model of a request that names none, if there is one.

    Raises:
        ApiError: 400 if it is no valid name.
    """
    try:
        return read_model_field(document, _only(document, only_model))
    except BodyError as error:
        raise _refused(error) from None


def with_fields(document: dict[str, Any], fields: dict[str, object]) -> bytes:
    """The body with some fields replaced. Only then is it not sent byte for byte: its priority was limited, or it named no model."""
    return orjson.dumps({**document, **fields})


def _only(document: dict[str, Any], only_model: Callable[[], str] | None) -> str:
    return "" if only_model is None or document.get("model") is not None else only_model()


def _refused(error: BodyError) -> ApiError:
    return ApiError(400, "invalid_value", str(error), param=error.field)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)
