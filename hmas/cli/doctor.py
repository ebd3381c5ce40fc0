"""`hmas doctor`: checks the installation and says what to fix."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from hmas.agents.meta.make import SELECTOR_PLUGINS
from hmas.agents.perception.readers import READER_PLUGINS
from hmas.agents.statera.agent import LAW_PLUGINS
from hmas.cli import checks
from hmas.cli.admin import admin_url_option, config_option, connect, read_config
from hmas.cli.output import EXIT_FAILED, example, json_option, say, say_json, table
from hmas.controller.config.plugins import Plugin, load_plugins
from hmas.controller.core.errors import AdminError, ConfigError
from hmas.workloads.catalogue import WORKLOAD_PLUGINS


@click.command(epilog=example("hmas doctor --config hmas.yaml"))
@json_option
@admin_url_option
@config_option
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool, admin_url: str | None, config_file: str | None) -> None:
    """Check Python, plugins, configuration, bus, engines, gateway, agents, models, overrides, clock, ports and limits.

    Each check prints OK, WARN or FAIL, and what to do. Exit code 1 if a check fails.
    """
    found = list(examine(admin_url, config_file))
    failed = any(check.state == "FAIL" for check in found)
    if as_json:
        say_json({"ok": not failed, "checks": [asdict(check) for check in found]})
    else:
        say(table(["", "what", "found"], [(check.state, check.name, check.found) for check in found]))
        todo = [f"{check.state}  {check.name}: {check.do}" for check in found if check.do]
        if todo:
            say("\nWhat to do:\n" + "\n".join(todo))
    ctx.exit(EXIT_FAILED if failed else 0)


def examine(admin_url: str | None, config_file: str | None) -> Iterator[checks.Check]:
    """Every check. Without a usable configuration, only the checks that do not need one."""
    yield from checks.check_python()
    yield from checks.check_limits()
    yield from checks.check_plugins(all_plugins())
    try:
        config = read_config(config_file)
    except ConfigError as error:
        yield checks.Check("config", "FAIL", str(error), "mend it; `hmas config check` says the same")
        return
    yield from checks.check_advice(config, os.environ)
    yield from checks.check_state_dir(config)
    yield from checks.check_overrides(config)
    yield from checks.check_bus(config)
    yield from checks.check_engines(config, os.environ)
    status, trouble = _status(admin_url, config_file)
    yield from checks.check_gateway(config, status, trouble)
    if status is not None:
        yield from checks.check_models(status.get("models", []))


def all_plugins() -> tuple[Plugin, ...]:
    """Every plugin of every extension point, loaded."""
    own = (SELECTOR_PLUGINS, LAW_PLUGINS, READER_PLUGINS, WORKLOAD_PLUGINS)
    return (*load_plugins(), *(plugin for point in own for plugin in point.load()))


def _status(admin_url: str | None, config_file: str | None) -> tuple[dict[str, Any] | None, str]:
    try:
        return connect(admin_url, config_file).status(), ""
    except AdminError as error:
        return None, str(error)
