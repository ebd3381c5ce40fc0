"""Generates the reference in docs/configuration.md from the schema, and has an example file."""

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
`HMAS_GATEWAY__PORT=9000`. Numbers and `true`/`false` are read by the setting's type; lists and maps are given whole, as JSON.
A variable that starts with `HMAS_` and names no setting is a mistake and is reported. Not settings, but known:
`HMAS_CONFIG`, `HMAS_ADMIN_URL`, `HMAS_ADMIN_TOKEN`, `HMAS_API_KEY` (read by the CLI), `HMAS_INSTANCE` (tells instances of an agent apart).
The variables that Kubernetes makes for a Service are left alone.

Times are in seconds where the name ends in `_s`, milliseconds where it ends in `_ms`. Unknown keys are refused.

This page is made from controller/config/schema.py by `hmas config reference`; a test checks that it is current.
"""

_EXAMPLE = """\
# H-MAS: a configuration to start from. Every setting has a default; docs/configuration.md lists them all.
# Check it with: hmas config check FILE

gateway:
  host: 127.0.0.1
  port: 8080
  admin_port: 8081            # the operators' API; keep it on loopback
  no_auth: true               # loopback only; remove it once tenants have keys
  drain_s: 30

engines:
  - name: gpu-0
    url: http://127.0.0.1:8000
    kind: auto                # auto asks the engine what it is
    n_run_max: 64
  # - name: gpu-1
  #   url: http://127.0.0.1:8001
  #   api_key_env: GPU1_KEY   # the key towards the engine, by the name of its environment variable

# tenants:
#   team-a:
#     key_sha256: []          # as printed by `hmas key new`
#     weight: 2.0

scheduler:
  policy: edf                 # `hmas policy list` has the names
  overdue: demote             # keep, demote, shed

slo:
  scale: 1.0                  # stretches the SLO table to this installation

bus:
  url: ""                     # empty: `hmas up` starts a server of its own

agents:
  enabled: true

logging:
  level: info
  format: text
"""


def example_config() -> str:
    """A short YAML file to start from."""
    return _EXAMPLE


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
            note = "" if prefix else "\nThe whole of it in the environment: `" + _variable((field.encode_name,)) + "`, as JSON.\n"
            parts.append(f"## {title}\n\n{_first_line(section)}\n{note}")
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


def _first_line(section: types.StructType) -> str:
    return str(section.cls.__doc__ or "").strip().split("\n", 1)[0]
