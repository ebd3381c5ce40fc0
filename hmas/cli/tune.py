"""`hmas tune`: fit a control loop to the engine it runs on."""

from collections.abc import Mapping
from types import MappingProxyType

import click

from hmas.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"statera": ("hmas.cli.tune_statera:tune_statera", "The gains of statera's window loop, from an identification run.")}
)
"""Every loop that can be tuned: where its command is, and its line in `hmas tune --help`."""


@click.group(cls=LazyGroup, lazy=COMMANDS)
def tune() -> None:
    """Fit control loops to the engine they run on."""
