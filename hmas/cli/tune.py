"""`hmas tune`: tunes a control loop for the engine that it controls."""

from collections.abc import Mapping
from types import MappingProxyType

import click

from hmas.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"statera": ("hmas.cli.tune_statera:tune_statera", "The gains of statera's window loop, from an identification run.")}
)
"""Every loop that can be tuned: the location of its command, and its line in `hmas tune --help`."""


@click.group(cls=LazyGroup, lazy=COMMANDS)
def tune() -> None:
    """Tune control loops for the engine that they control."""
