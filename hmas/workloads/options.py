"""The options that every workload has, and the parser of specifications such as `poisson:rate=40,duration=600`."""

import math
import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from hmas.controller.core.errors import TraceError

Positive = Annotated[float, Meta(gt=0, le=1e9)]
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]

AnyOptions = TypeVar("AnyOptions", bound="Options")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every workload.

    Attributes:
        seed: Seed of all draws; each purpose has its own random stream.
        slo_scale: Factor on Table 6 for the operating point (H-MAS E.5).
        ttft_ms, tpot_ms: One target for all requests in place of Table 6; 0 keeps the table's.
        context: The engines' context: longer requests are cut to fit; 0 for no cut.
    """

    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 1
    slo_scale: Positive = 1.0
    ttft_ms: NotNegative = 0.0
    tpot_ms: NotNegative = 0.0
    context: Annotated[int, Meta(ge=0, le=100_000_000)] = 0


class Spec(NamedTuple):
    """A parsed specification: the workload's name, its file or folder, and its options as given."""

    name: str
    path: Path | None
    options: dict[str, Any]


def parse(text: str) -> Spec:
    """Reads `NAME`, `NAME:option=value,...`, `NAME:PATH` or `NAME:PATH?option=value,...`.

    Raises:
        TraceError: The text has another form.
    """
    head, colon, rest = text.strip().partition(":")
    name, mark, early = head.partition("?")
    if mark and colon:
        raise TraceError(f"workload is {text!r}; allowed: NAME:option=value,... or NAME:PATH?option=value,...")
    path, pairs = "", early
    if not mark and rest:
        # `azure:trace.csv` names a file, `poisson:rate=40` an option; a path that contains "=" is recognized by "?" or a slash before it.
        before, question, after = rest.rpartition("?")
        if question:
            path, pairs = before, after
        elif re.match(r"\w+=", rest):
            pairs = rest
        else:
            path = rest
    return Spec(name, Path(path) if path else None, _pairs(text, pairs))


def _pairs(text: str, pairs: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in filter(None, re.split(r"[,&]", pairs)):
        key, equals, value = pair.partition("=")
        if not equals or not key or not value:
            raise TraceError(f"workload {text!r}: {pair!r} is no option; allowed: option=value, separated by commas")
        if key in options:
            raise TraceError(f"workload {text!r}: {key} is given twice; allowed: once")
        options[key] = value
    return options


def read_options(spec: Spec, kind: type[AnyOptions]) -> AnyOptions:
    """Converts the options to their types.

    Raises:
        TraceError: An option is unknown, or a value is of the wrong type or out of range; the error names it and what is allowed.
    """
    unknown = sorted(set(spec.options) - set(kind.__struct_fields__))
    if unknown:
        raise TraceError(f"{spec.name}: {unknown[0]!r} is no option of it; allowed: {', '.join(sorted(kind.__struct_fields__))}")
    try:
        options = msgspec.convert(spec.options, kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        field = where.rstrip("`")
        allowed = what.removeprefix("Expected ").replace("`", "").split(", got")[0]
        raise TraceError(f"{spec.name}: {field} is {spec.options.get(field)!r}; allowed: {allowed}") from error
    for field in kind.__struct_fields__:
        value = getattr(options, field)
        if isinstance(value, float) and not math.isfinite(value):
            raise TraceError(f"{spec.name}: {field} is {value}; allowed: finite numbers")
    return options
