"""What every section of the configuration shares: its base and its kinds of values."""

from typing import Annotated

import msgspec
from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535, description="TCP port; 0 lets the system choose")]
Name = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="letters, digits, dot, underscore, hyphen; 64 at most")
]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Share = Annotated[float, Meta(ge=0, le=1)]
PolicyName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
"""The pool says which there are, a user's own included; `cross_checks.unknown_policy` asks it."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: unknown keys are mistakes and are refused."""
