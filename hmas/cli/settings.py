"""The option that names a command's configuration, and the reading of it."""

import os
from collections.abc import Mapping

import click

from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import Config

config_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    envvar="HMAS_CONFIG",
    help="Configuration, YAML or TOML. [env: HMAS_CONFIG; default: built-in values]",
)


def read_config(config_file: str | None, extra: Mapping[str, str] | None = None) -> Config:
    """Reads the configuration from file and environment; `extra` variables take precedence over both.

    Raises:
        ConfigError: Names every mistake.
    """
    return load_config(config_file or None, {**os.environ, **(extra or {})})
