"""The section `mqtt` of the configuration, and the contradictions that its settings can have."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from hmas.controller.config.check import Problem
from hmas.controller.config.section import Seconds, Section, doc

MqttUser = Annotated[
    str, doc("a user name of the broker, or the common name of a client certificate", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,63}$")
]
FILES = ("tls_ca", "tls_cert", "tls_key", "password_file")


class MqttConfig(Section, frozen=True):
    """A broker that gets state, events and decisions, and may send commands (docs/mqtt.md). Needs the extra `mqtt`."""

    host: Annotated[str, doc("name or address of the broker; empty: no MQTT")] = ""
    port: Annotated[int, doc("TCP port of the broker", ge=1, le=65535)] = 8883
    tls: Annotated[bool, doc("false: without TLS, for a broker on this machine; no commands are taken then")] = True
    tls_ca: Annotated[str, doc("file of the certificates that sign the broker's; empty: those that the system trusts")] = ""
    tls_cert: Annotated[str, doc("file of the client certificate; empty: none")] = ""
    tls_key: Annotated[str, doc("file of its key; given with tls_cert")] = ""
    user: Annotated[str, doc("user name at the broker; empty: none")] = ""
    password_env: Annotated[str, doc("environment variable that holds the user's password")] = ""
    password_file: Annotated[str, doc("file that holds the user's password, instead of password_env")] = ""
    client_id: Annotated[str, doc("name of the session at the broker, one for each gateway; empty: hmas, host name and prefix")] = ""
    prefix: Annotated[str, doc("begins every topic", pattern=r"^[A-Za-z0-9._-]{1,64}(/[A-Za-z0-9._-]{1,64}){0,7}$")] = "hmas"
    period_s: Annotated[Seconds, doc("least time between two messages about the state")] = 1.0
    queue_most: Annotated[
        int, doc("events, decisions and answers kept while the broker is away; beyond it the oldest is dropped", ge=1, le=1_000_000)
    ] = 10_000
    session_s: Annotated[int, doc("how long the broker keeps commands for a gateway that is away", ge=0, le=86_400)] = 300
    commands: Annotated[bool, doc("take commands; only over TLS, with `user` or `tls_cert`, and from `command_users`")] = False
    command_users: Annotated[
        list[MqttUser], doc("who may send commands, each on the topic PREFIX/command/USER, which the broker must keep for that user alone")
    ] = []  # noqa: RUF012 - msgspec copies it
    commands_per_minute: Annotated[int, doc("commands that each user may send; more are refused", ge=1, le=6000)] = 60


def mqtt_problems(mqtt: MqttConfig) -> Iterator[Problem]:
    """Every contradiction between settings of the section."""
    for setting in FILES:
        path = getattr(mqtt, setting)
        # Only the gateway's user may be allowed to look: then this process leaves it to the gateway.
        with contextlib.suppress(OSError):
            if path and not Path(path).expanduser().is_file():
                yield Problem(("mqtt", setting), f"got {path!r}; allowed: a file that is there, or an empty text")
    if bool(mqtt.tls_cert) != bool(mqtt.tls_key):
        given, missing = ("tls_cert", "tls_key") if mqtt.tls_cert else ("tls_key", "tls_cert")
        yield Problem(("mqtt", missing), f"got an empty text with {given}; allowed: a file beside it, or both empty")
    if mqtt.password_env and mqtt.password_file:
        yield Problem(("mqtt", "password_file"), f"got {mqtt.password_file!r} beside password_env; allowed: one of the two")
    if (mqtt.password_env or mqtt.password_file) and not mqtt.user:
        yield Problem(("mqtt", "user"), "got an empty text with a password; allowed: the user that it belongs to")
    if not mqtt.commands:
        return
    if not mqtt.tls:
        yield Problem(("mqtt", "commands"), "got true with tls false; allowed: only over TLS")
    if not (mqtt.user or mqtt.tls_cert):
        yield Problem(("mqtt", "commands"), "got true without user and tls_cert; allowed: with one of the two")
    if not mqtt.command_users:
        yield Problem(("mqtt", "command_users"), "got an empty list with commands true; allowed: the users that may send commands")


def mqtt_advice(mqtt: MqttConfig, env: Mapping[str, str]) -> Iterator[str]:
    """Settings that are allowed but probably not intended."""
    if mqtt.password_env and mqtt.password_env not in env:
        yield f"mqtt.password_env: the environment has no {mqtt.password_env}; the gateway does not start without it"
    if mqtt.host and not mqtt.tls and mqtt.user:
        yield "mqtt.tls: is false, so the password goes to the broker in clear text"
