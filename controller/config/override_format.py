"""The override document: its fields, its checks and its JSON Schema. A document is accepted as a whole or not at all."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hmas.controller.config.check import Problem, dotted, problems
from hmas.controller.config.section import ListedName, Name, Weights, doc
from hmas.controller.control.overrides import Override
from hmas.controller.core.errors import OverrideError, PolicyError
from hmas.controller.routing.registry import WEIGHTS, read_router, router_text, split_router
from hmas.controller.scheduling.admission.quotas import TenantLimits
from hmas.controller.scheduling.policies.registry import BUILT_IN, POLICIES, check_parameters
from hmas.engines.base import Knobs

MAX_BYTES = 64 * 1024
MAX_LIFE_S = 366 * 86_400.0
"""Latest expiry, which catches a wrong digit in the year. An override without expiry has `null`."""
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
SCHEMA_ID = "urn:h-mas:override:1"
_SHOWN_PROBLEMS = 10

Author = Annotated[str, doc("who holds it: a name or an address", min_length=1, max_length=100, pattern=r"\S")]
Reason = Annotated[str, doc("why, for those who find it in force", min_length=1, max_length=500, pattern=r"\S")]
Parameter = Annotated[str, doc("name of a policy parameter", pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Instance = Annotated[str, doc("instance name, or * for all that are not named", pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,63})$")]
Model = Annotated[str, doc("name of a model, or * for all that are not named", min_length=1, max_length=256, pattern=r"^\S+$")]
Expiry = Annotated[
    str,
    doc(
        "ISO 8601 time with a zone, as in YYYY-MM-DDTHH:MM:SSZ; at most 366 days ahead",
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)$",
        extra_json_schema={"format": "date-time"},
    ),
]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the document's parts: unknown keys are mistakes and are refused."""


class PolicyPart(_Part, frozen=True):
    """The policy in force until the override ends."""

    name: Annotated[
        ListedName,
        doc(
            "queueing policy: one of the project's own, as in the examples, or one of the user's",
            extra_json_schema={"examples": [policy.name for policy in BUILT_IN]},
        ),
    ]
    parameters: Annotated[dict[Parameter, float], doc("the policy's own parameters", max_length=16)] = {}


class KnobsPart(_Part, frozen=True):
    """Execution controls of an instance; at least one of them."""

    n_run: Annotated[int, doc("requests in flight", ge=1, le=4096)] | UnsetType = UNSET
    token_budget: Annotated[int, doc("tokens per engine step", ge=1, le=1_048_576)] | UnsetType = UNSET


class TenantPart(_Part, frozen=True):
    """What changes for a tenant."""

    weight: Annotated[float, doc("share under the fair policies", gt=0, le=1000)] | UnsetType = UNSET
    tokens_per_minute: Annotated[int, doc("quota of prompt and output tokens; 0: none", ge=0, le=1_000_000_000)] | UnsetType = UNSET
    burst_tokens: (
        Annotated[int, doc("tokens of the quota at once after a pause; 0: a minute's worth", ge=0, le=1_000_000_000)] | UnsetType
    ) = UNSET
    requests_per_minute: Annotated[int, doc("quota of requests; 0: none", ge=0, le=10_000_000)] | UnsetType = UNSET
    concurrency_share: Annotated[float, doc("greatest share of all windows while others wait; 1: no limit", gt=0, le=1)] | UnsetType = UNSET
    max_running: Annotated[int, doc("most of its sequences in flight, whoever else waits; 0: no limit", ge=0, le=1_000_000)] | UnsetType = (
        UNSET
    )
    max_queued: Annotated[int, doc("requests of it that may wait; 0: no limit", ge=0, le=1_000_000)] | UnsetType = UNSET
    max_body_bytes_waiting: (
        Annotated[int, doc("bytes of the bodies of its requests that may wait; 0: no limit", ge=0, le=1 << 40)] | UnsetType
    ) = UNSET


class EnginePart(_Part, frozen=True):
    """What changes for an engine."""

    drain: Annotated[bool, doc("true: no new requests are sent to it", extra_json_schema={"const": True})]


class RouterPart(_Part, frozen=True):
    """The router of a model."""

    name: Annotated[ListedName, doc("router: one of `hmas router list`", extra_json_schema={"examples": [*WEIGHTS]})]
    weights: Annotated[Weights, doc("weights of its scorers that differ from its own; 0 leaves one out")] = {}


class OverrideDocument(_Part, frozen=True):
    """An override of H-MAS: what operators hold against the agents, since when, by whom and why."""

    version: Annotated[int, doc("of this format", ge=1, le=1)]
    author: Author
    reason: Reason
    expires: Expiry | None
    policy: PolicyPart | UnsetType = UNSET
    knobs: Annotated[dict[Instance, KnobsPart], Meta(max_length=256)] = {}
    tenants: Annotated[dict[Name, TenantPart], Meta(max_length=1024)] = {}
    engines: Annotated[dict[Name, EnginePart], Meta(max_length=256)] = {}
    routers: Annotated[dict[Model, RouterPart], Meta(max_length=256)] = {}


_DOCUMENT_TYPE = msgspec.inspect.type_info(OverrideDocument)
_PARTS = ("policy", "knobs", "tenants", "engines", "routers")
LIMITS = TenantLimits.__struct_fields__
"""The limits of a tenant besides its weight; the document's keys are the fields of `TenantLimits`."""


def parse_override(data: bytes, *, id: str, now_s: float, allow_expired: bool = False) -> Override:  # noqa: A002 - `id` is the field's name everywhere
    """Reads and checks a whole document; no part of an invalid document is used.

    Args:
        data: UTF-8 JSON, 64 KiB at most.
        id: The file's name without `.json`.
        now_s: The current time, against which the expiry is checked.
        allow_expired: Accept an expired document, as the directory does: such a file has no effect.

    Raises:
        OverrideError: Names, for each of up to ten mistakes, the JSON path, what was found and what is allowed.
    """
    valid_id(id)
    if len(data) > MAX_BYTES:
        raise OverrideError(f"{id}: {len(data)} bytes; allowed: {MAX_BYTES} at most")
    return override_from(_json(data, id), id=id, now_s=now_s, allow_expired=allow_expired)


def override_from(document: Any, *, id: str, now_s: float, allow_expired: bool = False) -> Override:  # noqa: A002 - see parse_override
    """As `parse_override`, for a document that is already decoded."""
    try:
        check_text(json.dumps(document, ensure_ascii=False, skipkeys=True, default=str), id)
    except RecursionError:
        raise OverrideError(f"{id}: nested too deeply; an override has four levels") from None
    wrong = list(problems(document, _DOCUMENT_TYPE))
    told = {problem.path for problem in wrong}
    wrong += [problem for problem in _unknown_policy(document) if problem.path not in told]
    found = wrong or list(_meaning(document, now_s, allow_expired=allow_expired))
    if found:
        lines = [f"{id}: {_json_path(problem)}: {problem.message}" for problem in found[:_SHOWN_PROBLEMS]]
        more = len(found) - _SHOWN_PROBLEMS
        raise OverrideError("\n".join(lines + ([f"{id}: and {more} more"] if more > 0 else [])))
    checked = msgspec.convert(document, OverrideDocument)
    return Override(
        id=id,
        author=checked.author.strip(),
        reason=" ".join(checked.reason.split()),
        expires_s=None if checked.expires is None else datetime.fromisoformat(checked.expires).timestamp(),
        policy=checked.policy.name if checked.policy else None,
        parameters=checked.policy.parameters if checked.policy else {},
        knobs={name: Knobs(**msgspec.to_builtins(part)) for name, part in checked.knobs.items()},
        tenant_weights={name: part.weight for name, part in checked.tenants.items() if part.weight is not UNSET},
        tenant_limits={name: limits for name, part in checked.tenants.items() if (limits := _limits(part))},
        draining=tuple(sorted(checked.engines)),
        routers={model: router_text(part.name, part.weights) for model, part in checked.routers.items()},
    )


def _limits(part: TenantPart) -> dict[str, int | float]:
    """The limits that a part sets."""
    return {name: value for name in LIMITS if (value := getattr(part, name)) is not UNSET}


def valid_id(id: str) -> str:  # noqa: A002 - see parse_override
    """Returns the id if it is valid.

    Raises:
        OverrideError: The id is invalid; the error says what is allowed.
    """
    if re.search(ID_PATTERN, id) is None or id.endswith("\n"):
        allowed = "letters, digits, dot, underscore and hyphen, 80 characters at most, the first a letter or digit"
        raise OverrideError(f"override id {id[:100]!r}; allowed: {allowed}")
    return id


def document_of(override: Override) -> dict[str, Any]:
    """The JSON document of an override; `parse_override` reads it back as the same override."""
    expires = None if override.expires_s is None else datetime.fromtimestamp(override.expires_s, UTC).isoformat().replace("+00:00", "Z")
    document: dict[str, Any] = {"version": 1, "author": override.author, "reason": override.reason, "expires": expires}
    if override.policy is not None:
        document["policy"] = {"name": override.policy, "parameters": dict(override.parameters)}
    if override.knobs:
        document["knobs"] = {name: msgspec.to_builtins(knobs) for name, knobs in override.knobs.items()}
    if tenants := override.tenants():
        document["tenants"] = tenants
    if override.draining:
        document["engines"] = {name: {"drain": True} for name in override.draining}
    if override.routers:
        parts = {model: split_router(text) for model, text in override.routers.items()}
        document["routers"] = {model: {"name": name, "weights": weights} for model, (name, weights) in parts.items()}
    return document


def override_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the document, as published in docs/override.schema.json."""
    (schema,), parts = msgspec.json.schema_components([OverrideDocument], ref_template="#/$defs/{name}")
    named = dict(parts)
    root = named.pop(schema["$ref"].rsplit("/", 1)[-1])
    root["title"] = "H-MAS override"
    root["anyOf"] = [{"required": [part], "properties": {part: {"minProperties": 1}}} for part in _PARTS]
    named["KnobsPart"]["minProperties"] = 1
    named["TenantPart"]["minProperties"] = 1
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **root, "$defs": named}


def _meaning(document: Mapping[str, Any], now_s: float, *, allow_expired: bool) -> Iterable[Problem]:
    """Mistakes that the check of types cannot find; called only with a document whose types are right."""
    if not any(document.get(part) for part in _PARTS):
        yield Problem((), "holds nothing; give at least one of " + ", ".join(_PARTS))
    if "policy" in document:
        try:
            check_parameters(document["policy"]["name"], document["policy"].get("parameters"))
        except PolicyError as error:
            yield Problem(("policy", "parameters"), str(error))
    for instance, part in document.get("knobs", {}).items():
        if not part:
            yield Problem(("knobs", instance), "sets no knob; give n_run or token_budget")
    for tenant, part in document.get("tenants", {}).items():
        if not part:
            yield Problem(("tenants", tenant), "sets nothing; give weight, " + ", ".join(LIMITS[:-1]) + f" or {LIMITS[-1]}")
    for engine, part in document.get("engines", {}).items():
        if not part["drain"]:
            yield Problem(("engines", engine, "drain"), "got false; allowed: true (leave the engine out to undrain it)")
    for model, part in document.get("routers", {}).items():
        try:
            read_router(router_text(part["name"], part.get("weights")))
        except PolicyError as error:
            yield Problem(("routers", model), str(error))
    yield from _expiry_problems(document["expires"], now_s, allow_expired=allow_expired)


def _unknown_policy(document: Any) -> Iterable[Problem]:
    """A policy that does not exist; checked next to the types, so that it is reported together with other mistakes."""
    part = document.get("policy") if isinstance(document, dict) else None
    name = part.get("name") if isinstance(part, dict) else None
    if isinstance(name, str) and name not in POLICIES:
        yield Problem(("policy", "name"), f"got {name!r} (a text); allowed: one of {', '.join(POLICIES)}")


def _expiry_problems(text: str | None, now_s: float, *, allow_expired: bool) -> Iterable[Problem]:
    if text is None:
        return
    try:
        expires_s = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        yield Problem(("expires",), f"got {text!r}, which is no date ({error}); allowed: a time as in YYYY-MM-DDTHH:MM:SSZ, or null")
        return
    if expires_s > now_s + MAX_LIFE_S:
        yield Problem(("expires",), f"got {text!r}, more than 366 days ahead; allowed: a nearer time, or null for good")
    if expires_s <= now_s and not allow_expired:
        yield Problem(("expires",), f"got {text!r}, which has passed; allowed: a time to come, or null for good")


def _json(data: bytes, id: str) -> Any:  # noqa: A002 - see parse_override
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise OverrideError(f"{id}: byte {error.start} is not UTF-8; allowed: a UTF-8 JSON document") from None
    except json.JSONDecodeError as error:
        where = "the document is empty" if not data.strip() else f"line {error.lineno} column {error.colno}: {error.msg}"
        raise OverrideError(f"{id}: not JSON, or only half written: {where}") from None
    except ValueError as error:
        raise OverrideError(f"{id}: not usable JSON: {error}") from None
    except RecursionError:
        raise OverrideError(f"{id}: nested too deeply; an override has four levels") from None


def check_text(text: str, id: str) -> bytes:  # noqa: A002 - see parse_override
    """Returns text as UTF-8. JSON can write half of a surrogate pair as an escape, which neither the bus nor a file can carry.

    Raises:
        OverrideError: The text holds one.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        allowed = r"text that UTF-8 can encode: \ud800 to \udfff only in pairs"
        raise OverrideError(f"{id}: a text holds an unpaired surrogate; allowed: {allowed}") from None


def _no_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for key, value in pairs:
        if key in held:
            raise ValueError(f"the key {key!r} stands twice in one object")
        held[key] = value
    return held


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")


def _json_path(problem: Problem) -> str:
    path = dotted(problem.path)
    return f"$.{path}" if path else "$"
