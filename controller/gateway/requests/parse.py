"""Parsing of request bodies. A body is parsed once for the control plane and sent to the engine as it came.

The parsed document is not kept: it takes up to 25 times the memory of the body, and a request may wait for minutes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from hmas.controller.core.body_bounds import (
    BODY,
    LARGE_BODY_BYTES,
    BodyStructure,
    colons_by_piece,
    colons_of_body,
    colons_of_document,
    repeated_key,
)
from hmas.controller.core.errors import BodyError
from hmas.controller.core.request_body import COMPLETIONS, Call, names_model, read_call, read_model, read_priority
from hmas.controller.gateway.errors import ApiError

MAX_DEPTH = 254
"""Levels of objects and lists that orjson writes; it reads 1,024."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some Windows clients send it before a body. It is no JSON, and is dropped."""


class BodyParser:
    """Parses bodies without holding the event loop for long.

    A large body is parsed in several turns of the loop, and one large body at a time. The bounds on a body keep each turn short. A thread
    would not help, because the parser holds the interpreter's lock.
    """

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()

    async def call(self, path: str, body: bytes, only_model: Callable[[], str], block_salt: str | None = None) -> Call:
        """Reads a completion request.

        Args:
            path: As in `read_call`.
            body: The body as it came.
            only_model: Tells the model of a request that names none; an empty text if there is no such model.
            block_salt: As in `read_call`.

        Raises:
            ApiError: 400; the message names the field, its value and the allowed values.
        """
        document = await self._document(body)
        try:
            return read_call(path, document, _only(document, only_model), block_salt)
        except BodyError as error:
            raise _refused(error) from None

    async def model(self, body: bytes, only_model: Callable[[], str]) -> tuple[str, bool, int | None]:
        """The model of a request that is not read any further, whether the body names it, and its priority if it claims one.

        Args:
            body: The body as it came.
            only_model: As in `call`.

        Raises:
            ApiError: 400 if it is no valid name, or the priority no whole number.
        """
        document = await self._document(body)
        try:
            return read_model(document, _only(document, only_model)), names_model(document), read_priority(document)
        except BodyError as error:
            raise _refused(error) from None

    async def with_fields(self, body: bytes, fields: dict[str, object]) -> bytes:
        """The body with some fields replaced. Only then is it not sent byte for byte: its priority was limited, or it named no model.

        Raises:
            ApiError: 400 if it is nested deeper than it can be written. A body that is sent as it came may be.
        """
        document = await self._document(body)
        try:
            return orjson.dumps({**document, **fields})
        except orjson.JSONEncodeError:
            names = " and ".join(fields)
            text = f"the request body is nested too deeply for {names} to be written into it; allowed: at most {MAX_DEPTH} levels"
            raise ApiError(400, "invalid_body", text) from None

    async def _document(self, body: bytes) -> dict[str, Any]:
        """Returns the body as a JSON object.

        Raises:
            ApiError: 400 if it is not JSON, not UTF-8 or not an object, if it holds too much, or if an object in it has the same key twice.
        """
        if len(body) <= LARGE_BODY_BYTES:
            document = _loads(body)
            if colons_of_document(document) != colons_of_body(body):
                raise _repeated(repeated_key(body))
            return document
        await self._one_at_a_time.acquire()
        try:
            structure = BodyStructure()
            while _count(structure, body):  # noqa: ASYNC110 - nothing to wait for: other work comes in between
                await asyncio.sleep(0)
            document = _loads(body)
            await asyncio.sleep(0)
            colons = 0
            for some in colons_by_piece(document):
                colons += some
                await asyncio.sleep(0)
            if colons != structure.colons:
                raise _repeated("")
            return document
        finally:
            self._one_at_a_time.release()


def with_cap(call: Call, cap_of: Callable[[str], int]) -> Call:
    """The call with the cap that engines set on a plain completion whose body sets none.

    Args:
        call: The call.
        cap_of: Tells the most tokens of one answer that a model's engines then give, 0 if they may give any number.
    """
    if call.path != COMPLETIONS or call.max_output_tokens is not None:
        return call
    most = cap_of(call.model) * call.sequences
    return replace(call, max_output_tokens=most, min_output_tokens=min(call.min_output_tokens, most)) if most else call


def _count(structure: BodyStructure, body: bytes) -> bool:
    try:
        return structure.count(body)
    except BodyError as error:
        raise _refused(error) from None


def _repeated(key: str) -> ApiError:
    what = f"the key {key!r}" if key else "the same key"
    text = f"an object in the request body has {what} twice, and engines differ in which of the two values they take; allowed: once"
    return ApiError(400, "repeated_key", text, param=key or None)


def _loads(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, "invalid_json", f"the request body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ApiError(400, "invalid_json", f"the request body is a JSON {_kind(document)}; it must be an object")
    return document


def _only(document: dict[str, Any], only_model: Callable[[], str]) -> str:
    return "" if names_model(document) else only_model()


def _refused(error: BodyError) -> ApiError:
    if error.field == BODY:
        return ApiError(400, "invalid_body", str(error))
    return ApiError(400, "invalid_value", str(error), param=error.field)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)
