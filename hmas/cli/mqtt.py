"""`hmas mqtt`: checks the connection to the MQTT broker, and that the broker keeps each command topic for its user."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping

import click

from hmas.cli.admin import config_option, read_config
from hmas.cli.output import EXIT_FAILED, example, json_option, say, say_json, table
from hmas.controller.config.mqtt import MqttConfig
from hmas.controller.core.errors import ConfigError

ARRIVES_S = 1.0
"""How long a message that was sent to this client itself may take."""


@click.group()
def mqtt() -> None:
    """Check the connection to the MQTT broker."""


@mqtt.command("check", epilog=example("hmas mqtt check --config hmas.yaml"))
@json_option
@config_option
@click.pass_context
def check(ctx: click.Context, *, as_json: bool, config_file: str | None) -> None:
    """Connect as the gateway does, send a message, and try to send a command as each user of mqtt.command_users without being it.

    It runs no command and disturbs no gateway that is connected. Exit code 1 if a check fails.
    """
    config = read_config(config_file).mqtt
    if not config.host:
        raise ConfigError("mqtt.host: is empty, so the gateway uses no MQTT; allowed: the name or address of a broker")
    from hmas.controller.gateway.mqtt import require_library  # noqa: PLC0415  only this command needs it

    require_library()
    findings = asyncio.run(_all(config, os.environ))
    if as_json:
        say_json([{"check": name, "ok": not fault, "fault": fault} for name, fault in findings])
    else:
        say(table(["check", "", "what is wrong"], [(name, "FAIL" if fault else "OK", fault) for name, fault in findings]))
    if any(fault for _, fault in findings):
        ctx.exit(EXIT_FAILED)


async def _all(config: MqttConfig, env: Mapping[str, str]) -> list[tuple[str, str]]:
    return [finding async for finding in _findings(config, env)]


async def _findings(config: MqttConfig, env: Mapping[str, str]) -> AsyncIterator[tuple[str, str]]:
    """Each check with what is wrong, which is empty if nothing is."""
    from hmas.controller.observability.exporters import mqtt_link as link  # noqa: PLC0415  it needs the extra

    name, place = f"{link.client_id(config)}-check", f"{config.host}:{config.port}"
    try:
        async with await link.client_of(config, link.password_of(config, env), name=name) as client:
            yield f"connect to {place}{' over TLS' if config.tls else ''} as {config.user or config.tls_cert or 'nobody'}", ""
            topic = f"{config.prefix}/event/check"
            back = await link.comes_back(client, topic, ARRIVES_S)
            yield f"send and receive on {topic}", "" if back else "the message does not come back; the broker's ACL must allow both"
            for user in config.command_users if config.commands else ():
                topic = link.command_topic(config, user)
                back = await link.comes_back(client, topic, ARRIVES_S)
                yield (
                    f"only {user} may send on {topic}",
                    "the gateway may, too; the broker's ACL must allow it to read alone" if back else "",
                )
    except link.ERRORS as error:
        yield f"talk to {place}", str(error) or type(error).__name__
        return
    if config.commands:
        try:
            async with await link.client_of(config, None, name=f"{name}-stranger", known=False):
                fault = "the broker lets them in; set allow_anonymous false, or require_certificate true"
        except link.ERRORS:
            fault = ""
        yield "clients that show neither user nor certificate are refused", fault
