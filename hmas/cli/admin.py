"""Options and functions with which commands find their configuration and a gateway."""

import getpass
import os
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any

import click

from hmas.cli.output import EXIT_FAILED, complain, duration_words, show
from hmas.cli.values import Duration
from hmas.controller.admin.client import AdminClient
from hmas.controller.config.derived import admin_token_file, is_loopback, url_of
from hmas.controller.config.loader import ADMIN_ADDRESS, STATE_DIR, load_config, load_for_client
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError

FOREVER = "until it is released"

config_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    envvar="HMAS_CONFIG",
    help="Configuration, YAML or TOML. [env: HMAS_CONFIG; default: built-in values]",
)
admin_url_option = click.option(
    "--admin", "admin_url", metavar="URL", envvar="HMAS_ADMIN_URL", help="The gateway's operators' API. [env: HMAS_ADMIN_URL]"
)
author_option = click.option("--author", default=None, help="Who; your login name by default.")
_HOLD_OPTIONS = (
    click.option("--for", "for_s", type=Duration(), help=f"How long, such as 90s, 10m, 2h; {FOREVER} by default."),
    click.option("--reason", required=True, help="Why; shown to everybody who finds it in force."),
    author_option,
)


def read_config(config_file: str | None, extra: Mapping[str, str] | None = None) -> Config:
    """Reads the configuration from file and environment; `extra` variables take precedence over both.

    Raises:
        ConfigError: Names every mistake.
    """
    return load_config(config_file or None, {**os.environ, **(extra or {})})


def connect(admin_url: str | None, config_file: str | None) -> AdminClient:
    """A client of the gateway named by --admin or HMAS_ADMIN_URL, else by the configuration.

    Without HMAS_ADMIN_TOKEN it sends the token that a gateway on this machine keeps in its state folder. It sends that one nowhere else.

    Of the configuration it reads the address and the state folder alone: a mistake elsewhere keeps nobody from a gateway that runs.

    Raises:
        ConfigError: The address is invalid, or the configuration has none that can be used, or cannot be parsed.
    """
    if not admin_url:
        gateway = read_for_client(config_file, ADMIN_ADDRESS, "--admin URL").gateway
        admin_url = url_of(gateway.admin_host, gateway.admin_port)
    token = os.environ.get("HMAS_ADMIN_TOKEN", "").strip()
    client = AdminClient(admin_url, token=token)
    if not token and is_loopback(client.host):
        client.token_file = lambda: admin_token_file(read_for_client(config_file, (STATE_DIR,), "HMAS_ADMIN_TOKEN or HMAS_STATE_DIR"))
    return client


def read_for_client(config_file: str | None, wanted: Collection[tuple[str, ...]], instead: str) -> Config:
    """As `load_for_client`; an error also says what to give `instead`."""
    try:
        return load_for_client(config_file or None, os.environ, wanted)
    except ConfigError as error:
        raise ConfigError(f"{error}\nmend it, or give {instead}: a gateway that runs already can then be reached all the same") from error


def takes_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the --admin and --config options, and passes the client that they name as its first argument."""

    @wraps(command)
    def connected(*args: Any, admin_url: str | None, config_file: str | None, **kwargs: Any) -> Any:
        return command(connect(admin_url, config_file), *args, **kwargs)

    return admin_url_option(config_option(connected))


def holds(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command --for, --reason and --author, and passes them as `hold`, the keywords that the client's methods take."""

    @wraps(command)
    def held(*args: Any, for_s: float | None, reason: str, author: str | None, **kwargs: Any) -> Any:
        return command(*args, hold={"for_s": for_s, "author": author or login_name(), "reason": reason}, **kwargs)

    for option in reversed(_HOLD_OPTIONS):
        held = option(held)
    return held


def show_held(
    client: AdminClient, document: dict[str, Any], text: Callable[[Any], str], override_id: str, *, as_json: bool, fault: str = ""
) -> None:
    """Writes what applies after a setting was forced as `override_id`. The exit code is 1 if another override wins, or with a `fault`."""
    won_by = winners_over(override_id, client.overrides())
    show({**document, "won_by": won_by}, text, as_json=as_json)
    complain_of_winners(won_by)
    if fault and not won_by:
        complain(fault)
    click.get_current_context().exit(EXIT_FAILED if won_by or fault else 0)


def winners_over(override_id: str, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Which other override wins over this one, by setting, in the list of all."""
    return {one["setting"]: one["winner"] for one in overrides["conflicts"] if override_id in one["losers"]}


def complain_of_winners(won_by: Mapping[str, str]) -> None:
    """Says of each setting, by its path, which other override holds it."""
    for setting, winner in won_by.items():
        complain(f"{setting}: the change is written, but the override `{winner}` wins and stays; `hmas override clear {winner}` ends that")


def not_taken_over(document: Mapping[str, Any], name: str, parameters: Mapping[str, float]) -> str:
    """Says that a forced policy is not in force, by the document of the policy that is; empty if it is."""
    if document["name"] == name and all(document["parameters"].get(key) == value for key, value in parameters.items()):
        return ""
    return f"{name} did not take over what waits, and is tried again; `hmas events --kind policy.refused` tells why"


def ends_words(hold: Mapping[str, Any], *release: str) -> str:
    """How long something is held, and the command that ends it."""
    span = f"for {duration_words(hold['for_s'])}" if hold["for_s"] else FOREVER
    return f"held {span}; `{shlex.join(['hmas', *release])}` ends it"


def show_released(
    client: AdminClient, document: Any, setting: Sequence[str], text: Callable[[Any], str], otherwise: str, *, as_json: bool
) -> None:
    """Writes what applies after a release, or `otherwise` if nothing was held. Exit code 1 then, and where another override holds it.

    `setting` is the path of what was released in an override's document.
    """
    others = [one["id"] for one in client.overrides()["overrides"] if _has(one["document"], setting)]
    document["won_by"] = {".".join(setting): one for one in others[-1:]}
    complain_of_winners(document["won_by"])
    show(document, lambda found: text(found) if found["released"] else otherwise, as_json=as_json)
    click.get_current_context().exit(0 if document["released"] and not others else EXIT_FAILED)


def _has(document: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True


def login_name() -> str:
    """The name of the user who runs this."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return f"uid {os.getuid()}"
