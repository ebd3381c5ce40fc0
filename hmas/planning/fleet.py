"""Fleets: the engines that a study simulates, and their notation.

It is `2xh100-qwen3-8b,4xa100-qwen3-8b:n_run=48:price=1.9`: a count, `x`, a profile's name or the path of a profile file, then options.
"""

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.controller.core.errors import ConfigError
from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import Profile, load_profile, same_model

MAX_INSTANCES = 4096
_PART = re.compile(r"(?:(\d+)x)?(.+)")


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the notation: count, window, token budget, price an hour and model; 0 or empty for what the profile has."""

    count: Annotated[int, Meta(ge=1, le=MAX_INSTANCES)] = 1
    n_run: Annotated[int, Meta(ge=0)] = 0
    token_budget: Annotated[int, Meta(ge=0)] = 0
    price: Annotated[float, Meta(ge=0)] = 0.0
    model: str = ""


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
    """Reads a fleet.

    Raises:
        ConfigError: It cannot be read, or a count, window or budget is out of range; the error names the part.
    """
    merged: dict[str, Group] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        group = _group(part)
        name = f"{group.kind.name} {group.kind.price} {group.kind.model}"
        before = merged[name].count if name in merged else 0
        merged[name] = Group(kind=group.kind, count=before + group.count)
    fleet = Fleet(groups=list(merged.values()))
    if not fleet.size:
        raise ConfigError("the fleet has no instances")
    if fleet.size > MAX_INSTANCES:
        raise ConfigError(f"the fleet has {fleet.size} instances; allowed: {MAX_INSTANCES} at most")
    return fleet


def _group(part: str) -> Group:
    head, *options = part.split(":")
    found = _PART.fullmatch(head)
    if found is None:
        raise ConfigError(f"fleet: {part!r} names no profile; allowed: such as 2xa100-qwen3-8b or 4xa100-qwen3-8b:n_run=48:price=1.9")
    fields: dict[str, Any] = {"count": found[1]} if found[1] else {}
    allowed = [name for name in _Options.__struct_fields__ if name != "count"]
    for option in options:
        name, equals, value = option.partition("=")
        if name not in allowed or not equals or name in fields:
            raise ConfigError(f"fleet: {option!r} in {part!r}; allowed: each once of {', '.join(f'{name}=VALUE' for name in allowed)}")
        fields[name] = value
    try:
        given, profile = msgspec.convert(fields, _Options, strict=False), load_profile(found[2])
    except msgspec.ValidationError as error:
        raise ConfigError(f"fleet: {part!r}: {error}") from error
    except ProfileError as error:
        raise ConfigError(f"fleet: {error}") from error
    if given.n_run > profile.max_num_seqs:
        raise ConfigError(f"fleet: n_run of {found[2]} is {given.n_run}; allowed: 1 to its max_num_seqs {profile.max_num_seqs}")
    kind = Kind(
        profile=profile,
        n_run=given.n_run or profile.max_num_seqs,
        token_budget=given.token_budget or profile.max_num_batched_tokens,
        price=given.price,
        model=given.model or profile.model,
    )
    return Group(kind=kind, count=given.count)
