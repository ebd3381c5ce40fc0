"""Options and functions with which the operators' commands find a gateway."""

import getpass
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from hmas.cli.settings import config_option, read_config
from hmas.controller.admin.client import AdminClient
from hmas.controller.config.paths import url_of

FOREVER = "until it is released"

admin_url_option = click.option(
    "--admin", "admin_url", metavar="URL", envvar="HMAS_ADMIN_URL", help="The gateway's operators' API. [env: HMAS_ADMIN_URL]"
)
reason_option = click.option("--reason", required=True, help="Why; shown to everybody who finds it in force.")
author_option = click.option("--author", default=None, help="Who; your login name by default.")


def connect(admin_url: str | None, config_file: str | None) -> AdminClient:
    """A client of the gateway named by --admin or HMAS_ADMIN_URL, else by the configuration.

    Raises:
        AdminError: The address is invalid.
        ConfigError: The configuration has mistakes.
    """
    if not admin_url:
        gateway = read_config(config_file).gateway
        admin_url = url_of(gateway.admin_host, gateway.admin_port)
    return AdminClient(admin_url, token=os.environ.get("HMAS_ADMIN_TOKEN", ""))


def takes_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the --admin and --config options, and passes the client that they name as its first argument."""

    @wraps(command)
    def connected(*args: Any, admin_url: str | None, config_file: str | None, **kwargs: Any) -> Any:
        return command(connect(admin_url, config_file), *args, **kwargs)

    return admin_url_option(config_option(connected))


def author_name(given: str | None) -> str:
    """The given author, else the login name."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return f"uid {os.getuid()}"
