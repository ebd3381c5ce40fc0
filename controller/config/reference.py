"""Generates the reference in docs/configuration.md from the schema, and has an example file."""

from importlib import resources
from typing import Any

import msgspec
from msgspec import inspect as types

from hmas.controller.config.check import allowed, bare, description
from hmas.controller.config.environment import PREFIX
from hmas.controller.config.schema import Config

_INTRO = """# Configuration

One YAML or TOML file, chosen with `--config FILE` or `HMAS_CONFIG=FILE`. Without a file the defaults hold.
`hmas config example` prints a file to start from, `hmas config check FILE` names every mistake with its line.

The environment stands above the file: `HMAS_SECTION__KEY=value`, with two underscores between section and key, such as
`HMAS_GATEWAY__PORT=9000`. Both stand above the preset that `preset` names; `hmas config show` prints what is in force.
Numbers and `true`/`false` are read by the setting's type; lists and maps are given whole, as JSON.
A variable that starts with `HMAS_` and names no setting is a mistake and is reported. Not settings, but known:
`HMAS_CONFIG`, `HMAS_ADMIN_URL`, `HMAS_ADMIN_TOKEN`, `HMAS_API_KEY` (read by the CLI), `HMAS_INSTANCE` (tells instances of an agent apart),
`HMAS_CONTROL_TOKEN` (read by the plugin inside an engine), `HMAS_DATA_DIR` (public data, for trainings and the lab), `HMAS_DATASETS_DIR`
(a folder in place of the package's own data), `HMAS_EXTRAS` and `HMAS_COMPILE` (for the build of an image or wheel), and some of tests.
The variables that Kubernetes makes for a Service are left alone.

Times are in seconds where the name ends in `_s`, milliseconds where it ends in `_ms`. Unknown keys are refused.

This page is made from controller/config/schema.py by `hmas config reference`; a test checks that it is current.
"""

_EXAMPLE = "example.yaml"


def example_config() -> str:
    """A short YAML file to start from."""
    return resources.files("hmas.controller.config").joinpath(_EXAMPLE).read_text(encoding="utf-8")


def reference() -> str:
    """The text of docs/configuration.md: every setting with its type, range, default, variable and meaning."""
    kind = types.type_info(Config)
    assert isinstance(kind, types.StructType)
    plain = [field for field in kind.fields if not _section(field.type)]
    parts = [_INTRO, "## Top level\n", _table(plain, "")]
    for field in kind.fields:
        section = _section(field.type)
        if section is not None:
            title, prefix = _title(field)
            about = str(section.cls.__doc__ or "").strip().split("\n", 1)[0]
            note = "" if prefix else "\nThe whole of it in the environment: `" + _variable((field.encode_name,)) + "`, as JSON.\n"
            parts.append(f"## {title}\n\n{about}\n{note}")
            parts.append(_table(section.fields, prefix))
    return "\n".join(parts)


def _section(kind: types.Type) -> types.StructType | None:
    """The struct type of a field or of its items, None if there is none."""
    inner = bare(kind)
    if isinstance(inner, types.DictType):
        inner = bare(inner.value_type)
    elif isinstance(inner, types.ListType):
        inner = bare(inner.item_type)
    return inner if isinstance(inner, types.StructType) else None


def _title(field: types.Field) -> tuple[str, str]:
    """Heading of a section, and the prefix of its variables (empty if its settings have no variables of their own)."""
    inner = bare(field.type)
    if isinstance(inner, types.DictType):
        return f"{field.encode_name}.NAME", ""
    if isinstance(inner, types.ListType):
        return f"{field.encode_name}[] (a list)", ""
    return field.encode_name, field.encode_name


def _table(fields: tuple[types.Field, ...] | list[types.Field], prefix: str) -> str:
    top = not prefix and bool(fields) and all(field.encode_name in Config.__struct_fields__ for field in fields)
    with_variable = top or bool(prefix)
    head = ["setting", "allowed", "default", *(["variable"] if with_variable else []), "meaning"]
    rows = [head, ["---"] * len(head)]
    for field in fields:
        path = (prefix, field.encode_name) if prefix else (field.encode_name,)
        variable = [f"`{_variable(path)}`"] if with_variable else []
        rows.append([f"`{field.encode_name}`", _allowed(field.type), _default(field), *variable, description(field.type)])
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def _allowed(kind: types.Type) -> str:
    inner = bare(kind)
    if isinstance(inner, types.StrType) and inner.pattern:
        return f"text matching `{inner.pattern}`"
    if isinstance(inner, types.ListType):
        return f"list of {_allowed(inner.item_type)}"
    return allowed(inner)


def _default(field: types.Field) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f"`{_written(value)}`"


def _written(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _variable(path: tuple[str, ...]) -> str:
    return PREFIX + "__".join(path).upper()
