"""The base class of every section of the configuration, and the value types that sections share."""

from typing import Annotated

import msgspec
from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535, description="TCP port; 0 lets the system choose")]
Name = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="letters, digits, dot, underscore, hyphen; 64 at most")
]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Share = Annotated[float, Meta(ge=0, le=1)]
ListedName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
"""Name of a member of a registry, such as a policy. `cross_checks.unknown_names` checks that it exists, built in or from a plugin."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of every section: unknown keys are refused as mistakes."""
