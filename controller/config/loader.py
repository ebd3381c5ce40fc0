"""Loads the configuration: file, then environment, then all checks; all mistakes are reported at once."""

from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path as FilePath
from typing import Any

import msgspec

from hmas.controller.config.check import Path, Problem, dotted, problems
from hmas.controller.config.cross_checks import advice, cross_problems, unknown_names
from hmas.controller.config.document import Document, parse_yaml, read_document
from hmas.controller.config.environment import apply_environment, names
from hmas.controller.config.plugins import load_plugins
from hmas.controller.config.schema import Config
from hmas.controller.config.section import GatewayConfig
from hmas.controller.core.errors import ConfigError

__all__ = ["ConfigMistakes", "Mistake", "advice", "load_config", "load_for_client"]

MAX_REPORTED = 20
PRESETS = {"paper": "paper.yaml"}
"""The file with the settings of each preset but the default one."""
_CONFIG_TYPE = msgspec.inspect.type_info(Config)
STATE_DIR = ("state_dir",)
ADMIN_ADDRESS = (("gateway", "admin_host"), ("gateway", "admin_port"))


class Mistake(msgspec.Struct, frozen=True, kw_only=True):
    """One mistake of a configuration.

    Attributes:
        where: `FILE:LINE` or `environment variable NAME`.
        path: The setting, such as `engines[1].url`; empty if it concerns no setting.
        message: What was found and what is allowed.
    """

    where: str
    path: str
    message: str

    def __str__(self) -> str:
        """The mistake as one line of text."""
        return ": ".join(part for part in (self.where, self.path, self.message) if part)


class ConfigMistakes(ConfigError):
    """A configuration was read but cannot be used; `mistakes` lists all mistakes."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        """Stores all mistakes; the text of the error shows the first twenty."""
        lines = [str(mistake) for mistake in mistakes[:MAX_REPORTED]]
        if len(mistakes) > MAX_REPORTED:
            lines.append(f"and {len(mistakes) - MAX_REPORTED} more")
        super().__init__("\n".join(lines))
        self.mistakes = mistakes


def load_config(path: str | None, env: Mapping[str, str]) -> Config:
    """Loads the active configuration. Plugins are loaded first, because the file may name them.

    Args:
        path: YAML or TOML file; None for the defaults and the environment alone.
        env: The environment; `HMAS_SECTION__KEY` takes precedence over the file, and both over the preset that they name.

    Raises:
        ConfigError: Names, for every mistake, the file and line (or the variable), the setting, its value and what is allowed.
    """
    load_plugins()
    document = Document("defaults", {}) if path is None else read_document(path)
    data = document.data
    origins, unusable = apply_environment(data, env)
    apply_preset(data)
    own, listed = _add_listed_engines(data)

    def mistake(problem: Problem) -> Mistake:
        path = problem.path
        if listed is not None and path[:1] == ("engines",) and len(path) > 1 and isinstance(path[1], int) and path[1] >= own:
            in_file = ("engines", path[1] - own, *path[2:])
            return Mistake(where=f"{listed.file}:{listed.line_of(in_file)}", path=dotted(in_file), message=problem.message)
        return Mistake(where=_where(path, document, origins), path=dotted(path), message=problem.message)

    found = [Mistake(where=f"environment variable {name}", path=dotted(item.path), message=item.message) for name, item in unusable]
    named = {problem.path: problem for problem in [*problems(data, _CONFIG_TYPE), *unknown_names(data)]}
    found += [mistake(problem) for problem in sorted(named.values(), key=lambda problem: document.line_of(problem.path))]
    if found:
        raise ConfigMistakes(found)
    config = msgspec.convert(data, Config)
    found = [mistake(problem) for problem in cross_problems(config)]
    if found:
        raise ConfigMistakes(found)
    return config


def load_for_client(path: str | None, env: Mapping[str, str], wanted: Collection[tuple[str, ...]]) -> Config:
    """The defaults with the `wanted` settings of file and environment alone, so that mistakes elsewhere keep no operator from a gateway.

    Neither `engines_file` nor a preset is read, and the file only where the environment lacks one of the settings.

    Raises:
        ConfigError: The file cannot be parsed, or one of these settings has a mistake.
    """
    variables = {name: env[name] for name, (place, _) in names().items() if place in wanted and name in env}
    document = Document("defaults", {}) if path is None or len(variables) == len(wanted) else read_document(path)
    origins, _ = apply_environment(document.data, variables)
    wrong = [problem for problem in problems(document.data, _CONFIG_TYPE) if _concerns(problem.path, wanted)]
    if wrong:
        raise ConfigMistakes(
            [Mistake(where=_where(one.path, document, origins), path=dotted(one.path), message=one.message) for one in wrong]
        )
    data: dict[str, Any] = {}
    for *sections, name in wanted:
        given, kept = document.data, data
        for section in sections:
            given, kept = given.get(section, {}), kept.setdefault(section, {})
        kept.update({name: given[name]} if name in given else {})
    return msgspec.convert(data, Config)


def _concerns(path: Path, wanted: Collection[tuple[str, ...]]) -> bool:
    """Whether a mistake there is one of a `wanted` setting, or of the section that it is in, or of a name that may be meant for it."""
    mistyped = path[:1] == ("gateway",) and str(path[-1]).startswith("admin_") and path[-1] not in GatewayConfig.__struct_fields__
    return any(path == place[: len(path)] or (mistyped and place in ADMIN_ADDRESS) for place in wanted)


def apply_preset(data: dict[str, Any]) -> None:
    """Fills in what the preset that `data` names sets and `data` itself does not. The parameters of a policy go with their policy."""
    name = data.get("preset")
    if not isinstance(name, str) or name not in PRESETS:
        return
    text = resources.files("hmas.controller.config").joinpath(PRESETS[name]).read_text(encoding="utf-8")
    for section, settings in parse_yaml(text, PRESETS[name]).data.items():
        given = data.setdefault(section, {})
        if isinstance(given, dict):
            own_policy = given.get("policy", settings.get("policy")) == settings.get("policy")
            data[section] = {key: value for key, value in settings.items() if own_policy or key != "parameters"} | given


def _add_listed_engines(data: dict[str, Any]) -> tuple[int, Document | None]:
    """Adds the engines of `engines_file` behind the configuration's own; returns how many its own are, and the file, None without one.

    Raises:
        ConfigError: The file cannot be read, or has something else than a list `engines`.
    """
    own, file = data.get("engines", []), data.get("engines_file")
    if not (isinstance(own, list) and isinstance(file, str) and file):
        return 0, None
    place = FilePath(file).expanduser()
    if not place.is_file():
        raise ConfigError(f"engines_file: got {file!r}, which is no file that can be read; allowed: a file with a list `engines`, or none")
    listed = read_document(str(place))
    engines = listed.data.get("engines")
    if not isinstance(engines, list) or len(listed.data) > 1:
        raise ConfigError(f"{listed.file}: has {', '.join(map(repr, listed.data)) or 'nothing'}; allowed: a list `engines` alone")
    data["engines"] = [*own, *engines]
    return len(own), listed


def _where(path: Path, document: Document, origins: Mapping[Path, str]) -> str:
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return f"environment variable {origins[path[:length]]}"
    if document.file == "defaults":
        return "defaults"
    return f"{document.file}:{document.line_of(path)}"
