"""Checks a parsed document against msgspec types and reports every mistake with its path, not only the first."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import inspect as types

Path = tuple[str | int, ...]
MAX_SHOWN = 80
SECRET_WORDS = ("sha256", "token", "api_key", "secret")
COUNTED = re.compile("tokens|token_budget|per_token")
"""Matches names of token counts, which are not secret."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake.

    Attributes:
        path: Keys and list positions that lead to it; () for the document itself.
        message: What was found and what is allowed, as text.
    """

    path: Path
    message: str


def problems(value: Any, kind: types.Type, path: Path = ()) -> Iterator[Problem]:
    """Every mistake in `value` as an instance of `kind`, in document order."""
    inner = bare(kind)
    match inner:
        case types.StructType():
            yield from _struct(value, inner, path)
        case types.DictType():
            yield from _map(value, inner, path)
        case types.ListType():
            yield from _list(value, inner, path)
        case types.UnionType():
            yield from _union(value, inner, path)
        case _:
            if not _fits(value, inner):
                yield Problem(path, f"{shown(value, path)}; allowed: {allowed(kind)}")


def bare(kind: types.Type) -> types.Type:
    """The type without the description that `msgspec.Meta` wraps around it."""
    while isinstance(kind, types.Metadata):
        kind = kind.type
    return kind


def description(kind: types.Type) -> str:
    """The description given by `msgspec.Meta`, empty if there is none."""
    if isinstance(kind, types.Metadata) and kind.extra_json_schema:
        return str(kind.extra_json_schema.get("description", ""))
    return ""


def allowed(kind: types.Type) -> str:
    """The allowed values of this type, as text."""
    inner = bare(kind)
    match inner:
        case types.LiteralType():
            return "one of " + ", ".join(str(value) for value in inner.values)
        case types.BoolType():
            return "true or false"
        case types.NoneType():
            return "null"
        case types.IntType() | types.FloatType():
            return ("integer" if isinstance(inner, types.IntType) else "number") + _range(inner)
        case types.StrType():
            meaning = description(kind) if inner.pattern else ""
            return _text(inner) + (f" ({meaning})" if meaning else "")
        case types.ListType():
            return f"a list, each item {allowed(inner.item_type)}"
        case types.DictType():
            return f"a map from name to {allowed(inner.value_type)}"
        case types.StructType():
            return "a map with the keys " + ", ".join(field.encode_name for field in inner.fields)
        case types.UnionType():
            return " or ".join(allowed(option) for option in inner.types)
    raise TypeError(f"no words for {inner!r}")


def closest(word: str, options: Iterable[str]) -> str:
    """` Did you mean X?` if an option is similar to `word`, else an empty text."""
    found = difflib.get_close_matches(word.lower(), list(options), n=1, cutoff=0.6)
    return f" Did you mean `{found[0]}`?" if found else ""


def dotted(path: Path) -> str:
    """A path as text, such as `engines[1].url`; empty for the document itself."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(value: Any, path: Path = ()) -> str:
    """`got ...`: the value and its type, cut to one line; a value that may be a secret is described but not shown."""
    word = _kind_word(value)
    if value is None or isinstance(value, Mapping | list):
        return f"got {word}"
    if any(mark in COUNTED.sub("", str(part)) for part in path[-2:] for mark in SECRET_WORDS):
        return f"got {word}" + (f" of {len(value)} characters" if isinstance(value, str) else "") + " (not shown)"
    text = repr(value) if isinstance(value, str) else str(value)
    if len(text) > MAX_SHOWN:
        text = text[:MAX_SHOWN] + "..."
    return f"got {text} ({word})"


def _struct(value: Any, kind: types.StructType, path: Path) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(path, f"{shown(value, path)}; allowed: {allowed(kind)}")
        return
    fields = {field.encode_name: field for field in kind.fields}
    for key, item in value.items():
        field = fields.get(str(key)) if isinstance(key, str) else None
        if field is None:
            names = ", ".join(fields)
            yield Problem((*path, str(key)), f"unknown key.{closest(str(key), fields)} Allowed here: {names}")
        else:
            yield from problems(item, field.type, (*path, field.encode_name))
    for name, field in fields.items():
        if field.required and name not in value:
            yield Problem(path, f"the key `{name}` is missing; it takes {allowed(field.type)}")


def _map(value: Any, kind: types.DictType, path: Path) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(path, f"{shown(value, path)}; allowed: {allowed(kind)}")
        return
    limit = kind.max_length
    if limit is not None and len(value) > limit:
        yield Problem(path, f"{len(value)} entries; allowed: {limit} at most")
    for key, item in value.items():
        if not _fits(key, bare(kind.key_type)):
            yield Problem((*path, str(key)), f"key {shown(key)}; allowed: {allowed(kind.key_type)}")
        else:
            yield from problems(item, kind.value_type, (*path, str(key)))


def _list(value: Any, kind: types.ListType, path: Path) -> Iterator[Problem]:
    if not isinstance(value, list):
        yield Problem(path, f"{shown(value, path)}; allowed: {allowed(kind)}")
        return
    for position, item in enumerate(value):
        yield from problems(item, kind.item_type, (*path, position))


def _union(value: Any, kind: types.UnionType, path: Path) -> Iterator[Problem]:
    """No mistake if an option fits; if there is one option besides null, reports the mistakes of that option."""
    tried = [list(problems(value, option, path)) for option in kind.types]
    if not all(tried):
        return
    rest = [found for option, found in zip(kind.types, tried, strict=True) if not isinstance(bare(option), types.NoneType)]
    if len(rest) == 1 and (isinstance(value, Mapping | list)):
        yield from rest[0]
    else:
        yield Problem(path, f"{shown(value, path)}; allowed: {allowed(kind)}")


def _fits(value: Any, kind: types.Type) -> bool:
    match kind:
        case types.LiteralType():
            return isinstance(value, str) and value in kind.values
        case types.BoolType():
            return isinstance(value, bool)
        case types.NoneType():
            return value is None
        case types.IntType():
            return isinstance(value, int) and not isinstance(value, bool) and _in_range(value, kind)
        case types.FloatType():
            return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value) and _in_range(value, kind)
        case types.StrType():
            return isinstance(value, str) and _text_fits(value, kind)
    raise TypeError(f"no check for {kind!r}")


def _is_finite(value: float) -> bool:
    """Whether a number is one that a float can hold: an integer may be larger than every float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _in_range(value: float, kind: types.IntType | types.FloatType) -> bool:
    return (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
        and (kind.lt is None or value < kind.lt)
    )


def _text_fits(value: str, kind: types.StrType) -> bool:
    return (
        (kind.min_length is None or len(value) >= kind.min_length)
        and (kind.max_length is None or len(value) <= kind.max_length)
        # `$` also matches before a final newline, which no name may contain.
        and (kind.pattern is None or (re.search(kind.pattern, value) is not None and not value.endswith("\n")))
    )


def _range(kind: types.IntType | types.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        if kind.ge == kind.le:
            return f" {_plain(kind.ge)}"
        return f" from {_plain(kind.ge)} to {_plain(kind.le)}"
    bounds = (("at least", kind.ge), ("above", kind.gt), ("at most", kind.le), ("below", kind.lt))
    words = [f"{word} {_plain(bound)}" for word, bound in bounds if bound is not None]
    return " " + " and ".join(words) if words else ""


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _text(kind: types.StrType) -> str:
    parts = []
    if kind.min_length is not None and kind.max_length is not None:
        parts.append(f"of {kind.min_length} to {kind.max_length} characters")
    elif kind.max_length is not None:
        parts.append(f"of at most {kind.max_length} characters")
    elif kind.min_length is not None:
        parts.append(f"of at least {kind.min_length} characters")
    if kind.pattern is not None:
        parts.append(f"matching {kind.pattern}")
    return "text" + (" " + ", ".join(parts) if parts else "")


def _kind_word(value: Any) -> str:
    if value is None:
        return "nothing"
    # A truth value is an integer, too, and so stands before it.
    kinds = {bool: " truth value", int: "n integer", float: " number", str: " text", list: " list", Mapping: " map"}
    word = next((word for kind, word in kinds.items() if isinstance(value, kind)), f" {type(value).__name__}")
    return f"a{word}"
