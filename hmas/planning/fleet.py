"""Fleets: the engines that a study simulates, and their notation.

The short form is `2xh100-qwen3-8b,4xa100-qwen3-8b:n_run=48:price=1.9`: a count, `x`, a profile's name or the path of a profile file, then
options. Alternatively a JSON or YAML file has a list `instances` of the same fields.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from hmas.controller.core.errors import ConfigError
from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import Profile, load_profile, same_model

MAX_INSTANCES = 4096
_PART = re.compile(r"(?:(\d+)x)?(.+)")
_FILES = (".json", ".yaml", ".yml")


class KindSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The specification of a kind of instance.

    Attributes:
        profile: A shipped profile's name, or the path of a profile file.
        count: How many of them.
        n_run: Window of each: requests in flight; 0 for the profile's `max_num_seqs`.
        token_budget: Tokens per step, 0 for the profile's own.
        price: Price of one instance per hour, in any currency; 0 if it does not matter.
        model: Name of the model it serves, if it differs from the profile's.
    """

    profile: str
    count: Annotated[int, Meta(ge=1, le=MAX_INSTANCES)] = 1
    n_run: Annotated[int, Meta(ge=0)] = 0
    token_budget: Annotated[int, Meta(ge=0)] = 0
    price: Annotated[float, Meta(ge=0)] = 0.0
    model: str = ""


class _FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    instances: list[KindSpec]


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of instance together with its profile, so that it can be sent to another machine.

    Attributes:
        n_run: Window of each instance, 1 to the profile's `max_num_seqs`.
        token_budget: Tokens per step, 1 or more.
        price: Per instance and hour, 0 if it does not matter.
        model: Model it serves.
    """

    profile: Profile
    n_run: int
    token_budget: int
    price: float = 0.0
    model: str = ""

    @property
    def name(self) -> str:
        """The profile's name, and settings that differ from the profile."""
        changed = "" if self.n_run == self.profile.max_num_seqs else f":n_run={self.n_run}"
        if self.token_budget != self.profile.max_num_batched_tokens:
            changed += f":token_budget={self.token_budget}"
        return self.profile.name + changed


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A number of instances of one kind, 0 or more."""

    kind: Kind
    count: int


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """All instances, kind by kind."""

    groups: list[Group]

    @property
    def size(self) -> int:
        """Number of all instances."""
        return sum(group.count for group in self.groups)

    @property
    def price(self) -> float:
        """Price of the fleet per hour; 0 if no price is known."""
        return sum(group.count * group.kind.price for group in self.groups)

    @property
    def name(self) -> str:
        """As on the command line, without prices."""
        return ",".join(f"{group.count}x{group.kind.name}" for group in self.groups if group.count)

    @property
    def kinds(self) -> list[Kind]:
        """The kinds, each once."""
        return [group.kind for group in self.groups]

    def instances(self) -> dict[str, Kind]:
        """Each instance's kind by its name, such as `a100-qwen3-8b-1`."""
        named: dict[str, Kind] = {}
        numbers: dict[str, int] = {}
        for group in self.groups:
            base = group.kind.profile.name
            for _ in range(group.count):
                numbers[base] = numbers.get(base, 0) + 1
                named[f"{base}-{numbers[base]}"] = group.kind
        return named

    def with_one_more(self, kind: Kind) -> "Fleet":
        """The fleet and one instance of `kind`."""
        if kind not in self.kinds:
            return Fleet(groups=[*self.groups, Group(kind=kind, count=1)])
        return Fleet(groups=[Group(kind=g.kind, count=g.count + (g.kind == kind)) for g in self.groups])

    def with_window(self, n_run: int) -> "Fleet":
        """The fleet with another window on every instance.

        Raises:
            ConfigError: It is more than a profile's `max_num_seqs`.
        """
        for kind in self.kinds:
            if not 1 <= n_run <= kind.profile.max_num_seqs:
                most = kind.profile.max_num_seqs
                raise ConfigError(f"n_run is {n_run}; allowed on {kind.profile.name}: 1 to its max_num_seqs {most}")
        changed = [msgspec.structs.replace(group, kind=msgspec.structs.replace(group.kind, n_run=n_run)) for group in self.groups]
        return Fleet(groups=changed)

    def model(self, wanted: str = "") -> str:
        """The one model that requests ask for: `wanted`, else that of the first kind.

        Raises:
            ConfigError: An instance's profile is for another model; chat tuning and spelling are ignored (`same_model`).
        """
        served = list(dict.fromkeys(kind.model for kind in self.kinds))
        model = wanted or served[0]
        for kind in self.kinds:
            if not same_model(kind.model, model):
                raise ConfigError(
                    f"profile {kind.profile.name} is for model {kind.model!r}, requests ask for {model!r}; take a profile of {model!r}, "
                    f"or say :model={model} where the profile stands for it"
                )
        return model


def read_fleet(text: str) -> Fleet:
    """Reads a fleet from its short form, or from a file.

    Raises:
        ConfigError: It cannot be read, or a count, window or budget is out of range; the error names the part.
    """
    text = text.strip()
    specs = _from_file(Path(text)) if text.endswith(_FILES) and not re.match(r"\d+x", text) else _from_text(text)
    if not specs:
        raise ConfigError("the fleet has no instances")
    groups = [Group(kind=make_kind(spec), count=spec.count) for spec in specs]
    merged: dict[str, Group] = {}
    for group in groups:
        name = f"{group.kind.name} {group.kind.price} {group.kind.model}"
        before = merged[name].count if name in merged else 0
        merged[name] = Group(kind=group.kind, count=before + group.count)
    fleet = Fleet(groups=list(merged.values()))
    if fleet.size > MAX_INSTANCES:
        raise ConfigError(f"the fleet has {fleet.size} instances; allowed: {MAX_INSTANCES} at most")
    return fleet


def read_kinds(text: str) -> list[Kind]:
    """Reads kinds of instances from the same notation; counts are ignored.

    Raises:
        ConfigError: As `read_fleet`.
    """
    return read_fleet(text).kinds


def make_kind(spec: KindSpec) -> Kind:
    """Loads the profile and takes from it the values that the spec leaves out.

    Raises:
        ConfigError: There is no such profile, or a value is out of range.
    """
    try:
        profile = load_profile(spec.profile)
    except ProfileError as error:
        raise ConfigError(f"fleet: {error}") from error
    if spec.n_run > profile.max_num_seqs:
        raise ConfigError(f"fleet: n_run of {spec.profile} is {spec.n_run}; allowed: 1 to its max_num_seqs {profile.max_num_seqs}")
    return Kind(
        profile=profile,
        n_run=spec.n_run or profile.max_num_seqs,
        token_budget=spec.token_budget or profile.max_num_batched_tokens,
        price=spec.price,
        model=spec.model or profile.model,
    )


def _from_text(text: str) -> list[KindSpec]:
    return [_part(part.strip()) for part in text.split(",") if part.strip()]


def _part(part: str) -> KindSpec:
    head, *options = part.split(":")
    found = _PART.fullmatch(head)
    if found is None:
        raise ConfigError(f"fleet: {part!r} names no profile; allowed: such as 2xa100-qwen3-8b or 4xa100-qwen3-8b:n_run=48:price=1.9")
    fields: dict[str, Any] = {"profile": found[2]}
    if found[1]:
        fields["count"] = found[1]
    allowed = [name for name in KindSpec.__struct_fields__ if name not in {"profile", "count"}]
    for option in options:
        name, equals, value = option.partition("=")
        if name not in allowed or not equals or name in fields:
            raise ConfigError(f"fleet: {option!r} in {part!r}; allowed: each once of {', '.join(f'{name}=VALUE' for name in allowed)}")
        fields[name] = value
    return _convert(fields, repr(part))


def _from_file(path: Path) -> list[KindSpec]:
    try:
        # YAML 1.2 includes JSON, and PyYAML nearly does, so one reader reads both.
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"fleet file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"fleet file {path}: {error}") from error
    if not isinstance(document, Mapping) or not isinstance(document.get("instances"), Sequence):
        raise ConfigError(f"fleet file {path}: wanted an object with a list `instances`")
    rows = _convert_file(document, path)
    return [_beside(row, path.parent) for row in rows]


def _convert_file(document: Mapping[str, Any], path: Path) -> list[KindSpec]:
    try:
        return msgspec.convert(document, _FleetFile).instances
    except msgspec.ValidationError as error:
        raise ConfigError(f"fleet file {path}: {error}") from error


def _beside(spec: KindSpec, folder: Path) -> KindSpec:
    """Resolves a relative profile path against the folder of the fleet file."""
    if spec.profile.endswith(".json") and not Path(spec.profile).is_absolute():
        return msgspec.structs.replace(spec, profile=str(folder / spec.profile))
    return spec


def _convert(fields: dict[str, Any], where: str) -> KindSpec:
    try:
        return msgspec.convert(fields, KindSpec, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"fleet: {where}: {error}") from error
