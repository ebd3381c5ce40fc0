"""Applies environment variables: `HMAS_SECTION__KEY=value` takes precedence over the file."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import inspect as types

from hmas.controller.config.check import Path, Problem, bare, closest
from hmas.controller.config.schema import Config

PREFIX = "HMAS_"
OTHER_NAMES = frozenset(
    {
        "HMAS_CONFIG",
        "HMAS_ADMIN_URL",
        "HMAS_ADMIN_TOKEN",
        "HMAS_API_KEY",
        "HMAS_COMPILE",
        "HMAS_CONTROL_TOKEN",
        "HMAS_DATA_DIR",
        "HMAS_DATASETS_DIR",
        "HMAS_EXTRAS",
        "HMAS_LISTEN_FDS",
        "HMAS_INSTANCE",
        "HMAS_CLIENTS_NODE",
        "HMAS_PYTHON",
        "HMAS_SGLANG_PYTHON",
        "HMAS_SGLANG_MODEL",
        "HMAS_VLLM_URL",
        "HMAS_VLLM_TOKEN",
        "HMAS_VLLM_OVERLAP",
        "HMAS_VLLM_PYTHON",
        "HMAS_VLLM_MODEL",
    }
)
"""Variables that processes and tests read and that are not settings."""

# A Kubernetes Service named hmas or hmas-gateway puts variables like HMAS_GATEWAY_PORT=tcp://10.0.0.1:8080 into every pod.
_SERVICE_LINK = re.compile(r"^HMAS_([A-Z0-9]+_)*(SERVICE_(HOST|PORT)(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
_CONFIG = types.type_info(Config)


def names() -> dict[str, tuple[Path, types.Type]]:
    """The variable of every setting, with its path and type, in the order of the schema."""
    return dict(_walk(_CONFIG, ()))


def apply_environment(data: dict[str, Any], env: Mapping[str, str]) -> tuple[dict[Path, str], list[tuple[str, Problem]]]:
    """Writes settings from the environment into the parsed file `data`; names without the HMAS_ prefix are ignored.

    Returns:
        The variable that set each path, and the mistakes, each with its variable. A value that does not parse as the
        setting's type is left as text, which the check of the whole document then reports.
    """
    known = names()
    origins: dict[Path, str] = {}
    mistakes: list[tuple[str, Problem]] = []
    for name, text in sorted(env.items()):
        if not name.startswith(PREFIX) or name in OTHER_NAMES:
            continue
        if name not in known:
            if not _service_link(name, text):
                mistakes.append((name, Problem((), _unknown(name, known))))
            continue
        path, kind = known[name]
        try:
            value = _parsed(text, bare(kind))
        except json.JSONDecodeError as error:
            mistakes.append((name, Problem(path, f"not JSON at column {error.colno}: {error.msg}; lists and maps are given as JSON here")))
            continue
        if _put(data, path, value):
            origins[path] = name
    return origins, mistakes


def _walk(kind: types.Type, path: Path) -> Iterator[tuple[str, tuple[Path, types.Type]]]:
    inner = bare(kind)
    if isinstance(inner, types.StructType):
        for field in inner.fields:
            yield from _walk(field.type, (*path, field.encode_name))
    else:
        yield PREFIX + "__".join(str(part) for part in path).upper(), (path, kind)


def _parsed(text: str, kind: types.Type) -> Any:
    match kind:
        case types.ListType() | types.DictType():
            return json.loads(text)
        case types.BoolType():
            return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)
        case types.IntType():
            return int(text) if re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text) else text
        case types.FloatType():
            try:
                return float(text)
            except ValueError:
                return text
    return text


def _put(data: dict[str, Any], path: Path, value: Any) -> bool:
    """Sets the value; returns False if a parent is not a section, which the check of the whole document then reports."""
    for part in path[:-1]:
        following = data.setdefault(str(part), {})
        if not isinstance(following, dict):
            return False
        data = following
    data[str(path[-1])] = value
    return True


def _service_link(name: str, text: str) -> bool:
    return bool(_SERVICE_LINK.match(name)) or (name.endswith("_PORT") and text.startswith(("tcp://", "udp://", "sctp://")))


def _unknown(name: str, known: Mapping[str, object]) -> str:
    for base in known:
        if name.startswith(base + "__"):
            return f"unknown: {base} takes the whole list or map as JSON, not a part of it"
    match = closest(name, [other.lower() for other in known]).upper().replace("DID YOU MEAN", "Did you mean")
    return f"no such setting.{match} Names are HMAS_SECTION__KEY with two underscores; `hmas config reference` lists them"
