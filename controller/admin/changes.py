"""What operators change. Each change becomes an override file, whether it came over HTTP or as a command over MQTT."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from hmas.controller.admin.operations import Operations
from hmas.controller.config.override_format import KnobsPart, override_from
from hmas.controller.control.overrides import Override, cli_id
from hmas.controller.core.errors import AdminError
from hmas.controller.runtime.clock import Clock

FORCE_KEYS = frozenset({"author", "reason", "for_s"})
KNOBS = KnobsPart.__struct_fields__


class BadRequest(AdminError):
    """A request that the operators' API refuses; `path` is the wrong JSON path or parameter."""

    def __init__(self, message: str, *, path: str = "", code: str = "invalid_request", status: int = 400) -> None:
        super().__init__(message)
        self.path = path
        self.code = code
        self.status = status


class Changes:
    """Forces settings and releases them.

    A `body` has the keys of the request that HTTP takes, with `author`, `reason` and `for_s` (seconds; None for no limit) beside them.
    Every method raises BadRequest where the body is wrong, and OverrideError where the override cannot be applied here.
    """

    def __init__(self, operations: Operations, clock: Clock) -> None:
        self._operations = operations
        self._clock = clock

    async def force_policy(self, body: Mapping[str, Any]) -> None:
        """Forces `policy` with `parameters`."""
        document = self._document(body, {"policy", "parameters"})
        document["policy"] = {"name": body.get("policy"), "parameters": body.get("parameters") or {}}
        await self.put_override(cli_id("policy"), document)

    async def release_policy(self) -> bool:
        """Releases the policy. False if none was forced."""
        return await self._operations.remove_override(cli_id("policy"))

    async def force_router(self, body: Mapping[str, Any]) -> None:
        """Forces `router` with `weights` for `model`, by default for all models."""
        document, model = self._document(body, {"router", "weights", "model"}), _model(body.get("model", "*"))
        document["routers"] = {model: {"name": body.get("router"), "weights": body.get("weights") or {}}}
        await self.put_override(cli_id("router", model), document)

    async def release_router(self, model: str) -> bool:
        """Releases the router of a model. False if none was forced for it."""
        return await self._operations.remove_override(cli_id("router", _model(model)))

    async def force_knobs(self, body: Mapping[str, Any]) -> None:
        """Forces the knobs of `instance`, by default of all instances. Those forced before stay, for as long as these."""
        instance = body.get("instance", "*")
        if not isinstance(instance, str):
            raise BadRequest(f"instance is {instance!r}; allowed: *, {', '.join(self._operations.instance_names())}", path="$.instance")
        document = self._document(body, {"instance", *KNOBS})
        override_id = cli_id("knobs", instance)
        held = [one["document"] for one in self._operations.overrides()["overrides"] if one["id"] == override_id]
        before = held[0].get("knobs", {}).get(instance, {}) if held else {}
        document["knobs"] = {instance: before | {name: body[name] for name in KNOBS if body.get(name) is not None}}
        await self.put_override(override_id, document)

    async def release_knobs(self, instance: str) -> bool:
        """Releases the knobs of an instance. False if none were forced."""
        return await self._operations.remove_override(cli_id("knobs", instance))

    async def drain(self, engine: object, body: Mapping[str, Any]) -> None:
        """Sends no new requests to an engine."""
        name = self._engine_name(engine)
        document = self._document(body, set())
        document["engines"] = {name: {"drain": True}}
        await self.put_override(cli_id("drain", name), document)

    async def undrain(self, engine: object) -> bool:
        """Sends requests to an engine again. False if it was not drained."""
        return await self._operations.remove_override(cli_id("drain", self._engine_name(engine)))

    async def put_override(self, override_id: str, document: object) -> None:
        """Applies an override document as a whole."""
        await self._operations.put_override(self._override(override_id, document))

    def validate(self, override_id: str, document: object) -> Override:
        """Returns the override that `put_override` would apply here, and applies nothing."""
        override = self._override(override_id, document)
        self._operations.check_override(override)
        return override

    async def remove_override(self, override_id: str) -> None:
        """Releases an override."""
        if not await self._operations.remove_override(override_id):
            raise BadRequest(f"there is no override {override_id!r}", code="not_found", status=404)

    def _override(self, override_id: str, document: object) -> Override:
        return override_from(document, id=override_id, now_s=self._clock.now_s())

    def _engine_name(self, name: object) -> str:
        known = self._operations.instance_names()
        if not isinstance(name, str) or name not in known:
            raise BadRequest(f"engine {name!r} is not configured; engines: {', '.join(known) or 'none'}", code="not_found", status=404)
        return name

    def _document(self, body: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """The common fields of an override document that is made from a request to force a setting with these `keys`."""
        allowed = sorted({*keys, *FORCE_KEYS})
        for key in body:
            if key not in allowed:
                raise BadRequest(f"{key!r} is unknown; allowed: {', '.join(allowed)}", path=f"$.{key}")
        for_s, expires = body.get("for_s"), None
        if for_s is not None:
            if not isinstance(for_s, int | float) or isinstance(for_s, bool) or not 1 <= for_s <= 366 * 86_400:
                raise BadRequest(
                    f"for_s is {for_s!r}; allowed: seconds, at least 1 and at most 366 days, or null for no limit", path="$.for_s"
                )
            ends = datetime.fromtimestamp(self._clock.now_s() + for_s, UTC)
            expires = ends.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        author, reason = body.get("author") or "operator", body.get("reason") or "forced through the operators' API"
        return {"version": 1, "author": author, "reason": reason, "expires": expires}


def _model(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 256:
        raise BadRequest(f"model is {str(name)[:80]!r}; allowed: the name of a model, 1 to 256 characters, or *", path="$.model")
    return name


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        BadRequest: It is none; `what` says what should be one.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{what} is not JSON: {error}", path="$", code="invalid_json") from None
    if not isinstance(document, dict):
        raise BadRequest(f"{what} must be a JSON object", path="$", code="invalid_json")
    return document


def error_document(error: BadRequest) -> dict[str, str]:
    """The error of an answer: `message`, `code`, and `path` of what is wrong."""
    return {"message": str(error), "code": error.code, "path": error.path}


def override_refused(error: Exception) -> BadRequest:
    """The refusal of an override, at the first JSON path that its error names."""
    message = str(error)
    start = message.find("$")
    path = message[start:].split(": ", 1)[0].split(maxsplit=1)[0] if start >= 0 else ""
    return BadRequest(message, path=path, code="invalid_override")
