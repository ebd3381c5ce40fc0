"""One simulated run as a plain document: workload, fleet and settings. It can be stored, compared and sent to another machine."""

import hashlib
import re
import sys
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from hmas.controller.config.plugins import ROUTER_PLUGINS, load_plugins
from hmas.controller.core.errors import ConfigError, PolicyError
from hmas.controller.routing.registry import DEFAULT_ROUTER, read_router
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY, check_parameters
from hmas.controller.scheduling.settings import SHIPPED, SchedulerSettings
from hmas.planning.fleet import Fleet

Agent = Literal["statera", "meta"]
AGENTS: tuple[Agent, ...] = get_args(Agent)

PRESETS = {
    "gateway": SHIPPED,
    "open": SchedulerSettings(overdue="keep", fence=False),
    "shed": SchedulerSettings(overdue="shed", fence=False),
}
"""Named admission settings; `open` is a plain queue."""
_SHORT = {
    "overdue": "overdue",
    "late_service_share": "late_service_share",
    "late_confidence": "late_confidence",
    "guard": "tpot_guard",
    "late": "late_share",
    "fence": "fence",
    "margin": "fence_margin",
    "queue": "queue_limit",
}


class SloTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Targets that every request declares, milliseconds; 0 keeps the workload's own."""

    ttft_ms: Annotated[float, Meta(ge=0)] = 0.0
    tpot_ms: Annotated[float, Meta(ge=0)] = 0.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        workload: Specification for `hmas.workloads`, such as `azure:FILE` or `poisson:rate=40,duration=600`.
        load: Multiple of the workload's own rate; times are divided by this.
        duration_s: Only requests that arrive before this in the workload's own time, before scaling; 0 for all.
        limit: Only this many first requests, 0 for all.
        warmup_s: Requests that arrive before this, after scaling, are served but not scored.
        model: The model that requests ask for, empty for the one that the fleet serves.
        router: How an instance is chosen, such as `default` or `default:prefix=0.5`.
        agents: Agents whose models control the run; qos runs with any of them.
        meta: Settings of meta that differ from the shipped ones, by the names of `AgentsConfig`, such as `meta_selector`.
        slo: Targets for all requests, in place of the workload's.
        seed: Seed of the workload's random draws.
    """

    workload: str
    fleet: Fleet
    load: Annotated[float, Meta(gt=0)] = 1.0
    duration_s: Annotated[float, Meta(ge=0)] = 0.0
    limit: Annotated[int, Meta(ge=0)] = 0
    warmup_s: Annotated[float, Meta(ge=0)] = 0.0
    model: str = ""
    policy: str = DEFAULT_POLICY
    parameters: dict[str, float] = {}
    router: str = DEFAULT_ROUTER
    admission: SchedulerSettings = SHIPPED
    agents: tuple[Agent, ...] = ()
    meta: dict[str, str | int | float | bool] = {}
    slo: SloTarget = SloTarget()
    seed: int = 1

    def check(self) -> None:
        """Checks whether the case can be run, as far as possible without the workload.

        Raises:
            ConfigError: Names the setting and what is allowed.
        """
        load_plugins()
        ROUTER_PLUGINS.find(self.router.partition(":")[0], "router")
        try:
            read_router(self.router)
            check_parameters(self.policy, self.parameters)
        except PolicyError as error:
            raise ConfigError(str(error)) from error
        if not self.fleet.size:
            raise ConfigError("the fleet has no instances")
        self.fleet.model(self.model)

    @property
    def key(self) -> str:
        """A hash of its whole content, including the profiles: the same on every machine."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]

    def document(self) -> dict[str, Any]:
        """The case for a report: the fleet by names, the rest unchanged."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain["fleet"] = [
            {
                "kind": group.kind.name,
                "count": group.count,
                "model": group.kind.model,
                "gpu": group.kind.profile.gpu,
                "tp": group.kind.profile.tp,
                "n_run": group.kind.n_run,
                "token_budget": group.kind.token_budget,
                "price": group.kind.price,
            }
            for group in self.fleet.groups
        ]
        return plain


def read_admission(text: str) -> SchedulerSettings:
    """Reads admission from a preset's name, settings, or both: `gateway`, `open`, `shed,late_service_share=0.5,guard=0.3,fence=no`.

    Raises:
        ConfigError: A name is unknown, or a value is out of range.
    """
    settings, named = SHIPPED, msgspec.to_builtins(SHIPPED)
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals and name in PRESETS:
            named = msgspec.to_builtins(PRESETS[name])
        elif equals and name in _SHORT:
            named[_SHORT[name]] = _yes_or_no(value) if name == "fence" else value
        else:
            raise ConfigError(f"admission: {part!r}; allowed: {', '.join(PRESETS)}, or {', '.join(f'{key}=VALUE' for key in _SHORT)}")
    try:
        settings = msgspec.convert(named, SchedulerSettings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"admission {text!r}: {error}") from error
    ranges = (
        ("late_service_share", settings.late_service_share, 1.0),
        ("late_confidence", settings.late_confidence, 0.99),
        ("guard", settings.tpot_guard, 1.0),
        ("late", settings.late_share, 1.0),
        ("margin", settings.fence_margin, 0.99),
    )
    for name, number, most in ranges:
        if not 0.0 <= number <= most:
            raise ConfigError(f"admission: {name} is {number:g}; allowed: 0 to {most:g}")
    if settings.queue_limit < 1:
        raise ConfigError(f"admission: queue is {settings.queue_limit}; allowed: 1 or more")
    return settings


def read_agents(text: str) -> tuple[Agent, ...]:
    """Reads agents from `none`, `all`, or names separated by `+` or commas.

    Raises:
        ConfigError: A name is unknown.
    """
    if text.strip() in {"", "none"}:
        return ()
    if text.strip() == "all":
        return AGENTS
    names = {name.strip() for name in re.split(r"[+,]", text)}
    unknown = names - set(AGENTS) - {"qos"}
    if unknown:
        raise ConfigError(f"agents: {', '.join(sorted(unknown))}; allowed: none, all, {', '.join(AGENTS)}")
    return tuple(agent for agent in AGENTS if agent in names)


def read_policy(text: str) -> tuple[str, dict[str, float]]:
    """Reads a policy, built in or from a plugin, and its parameters from a text such as `two-lane:threshold_ms=500`.

    Raises:
        ConfigError: The policy or a parameter is not allowed.
    """
    load_plugins()
    name, *parts = text.split(":")
    parameters: dict[str, float] = {}
    for part in parts:
        parameter, _, value = part.partition("=")
        try:
            parameters[parameter.strip()] = float(value)
        except ValueError:
            raise ConfigError(f"policy {text!r}: {part!r} is no parameter; allowed: NAME=NUMBER") from None
    try:
        check_parameters(name.strip(), parameters)
    except PolicyError as error:
        raise ConfigError(str(error)) from error
    return name.strip(), parameters


def read_slo(text: str, *, share: bool = False) -> tuple[SloTarget, float]:
    """Reads targets (ms), and with `share` the share of requests that must meet both, from `ttft=2000,tpot=60,share=0.95`.

    Each part is optional.

    Raises:
        ConfigError: A name is unknown, or a value is out of range.
    """
    values = {"ttft": 0.0, "tpot": 0.0, "share": 0.95}
    most = {"ttft": sys.float_info.max, "tpot": sys.float_info.max} | ({"share": 1.0} if share else {})
    more = ", and share=S, more than 0 and up to 1" if share else ""
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0.0 < number <= most.get(name, -1.0):
            raise ConfigError(f"slo: {part!r}; allowed: ttft=MS and tpot=MS, more than 0{more}")
        values[name] = number
    return SloTarget(ttft_ms=values["ttft"], tpot_ms=values["tpot"]), values["share"]


def _yes_or_no(text: str) -> bool:
    if text in {"yes", "true", "on", "1"}:
        return True
    if text in {"no", "false", "off", "0"}:
        return False
    raise ConfigError(f"admission: fence={text}; allowed: yes or no")
