"""A click group that imports a command only when it is called, which keeps `hmas --help` and `hmas status` fast."""

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are named by `module:attribute`."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        """`lazy` has, by command name, the command's location and its line of help; the other arguments are click's."""
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which they were declared."""
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports and returns the command; None if there is none of that name."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self._lazy[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing them."""
        rows = [(name, summary) for name, (_, summary) in self._lazy.items()]
        if not rows:
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    lazy={"statera": ("hmas.cli.tune_statera:tune_statera", "The gains of statera's window loop, from an identification run.")},
)
def tune() -> None:
    """Tune control loops for the engine that they control."""
