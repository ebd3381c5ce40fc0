"""Connects a gateway with an MQTT broker: what the exporter sends, and the commands that the operators' changes run."""

import importlib.util
from collections.abc import Mapping
from typing import Any

import orjson

from hmas.controller.admin.changes import Changes
from hmas.controller.admin.mqtt_commands import MqttCommands
from hmas.controller.admin.operations import Operations
from hmas.controller.config.mqtt import MqttConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.gateway.app import Gateway
from hmas.controller.observability.exporters.mqtt import MqttExporter, document
from hmas.controller.observability.exporters.mqtt_outbox import Outbox
from hmas.controller.observability.metrics import package_version

MISSING = "mqtt.host: the package aiomqtt is not installed; allowed: an empty text, or `pip install 'h-mas[mqtt]'` first"


class GatewayMqtt:
    """The MQTT side of one gateway.

    Attributes:
        exporter: An observer of the gateway; closing it closes the connection.
    """

    def __init__(self, mqtt: MqttConfig, env: Mapping[str, str]) -> None:
        """Connects nothing yet. `env`: the environment with the password.

        Raises:
            ConfigError: aiomqtt is not installed, or there is no password where the configuration says that it is.
        """
        require_library()
        # Its library is an extra.
        from hmas.controller.observability.exporters.mqtt_link import MqttLink  # noqa: PLC0415

        self._mqtt = mqtt
        self._outbox = outbox = Outbox(mqtt.queue_most)
        self.exporter = MqttExporter(outbox, prefix=mqtt.prefix, period_s=mqtt.period_s)
        birth, will = ({"state": state, "hmas_version": package_version()} for state in ("online", "offline"))
        self._link = MqttLink(mqtt, outbox, birth=document(birth), will=document(will), env=env)
        self.exporter.on_close = self._link.close

    def start(self, gateway: Gateway, operations: Operations) -> None:
        """Connects in the background, and takes commands if they are configured."""
        mqtt, link, note = self._mqtt, self._link, gateway.observer.note
        counted = self.exporter.count(gateway.metrics.registry, lambda: link.connected)
        self.exporter.goodput = gateway.completions.classes
        gateway.mqtt = self.report
        place = f"{mqtt.host}:{mqtt.port}"

        def changed(reason: str) -> None:
            if reason:
                note("mqtt", place, after="away", reason=reason, severity="warning")
            else:
                note("mqtt", place, after="connected")

        link.on_change = changed
        link.on_refused = lambda refusal: note("mqtt", place, after="refused", reason=refusal, severity="warning")
        if mqtt.commands:
            commands = MqttCommands(
                Changes(operations, gateway.clock),
                users=mqtt.command_users,
                per_minute=mqtt.commands_per_minute,
                clock=gateway.clock,
                note=note,
            )

            async def answer(user: str, payload: bytes, retained: bool) -> bytes | None:
                found = await commands.answer(user, payload, retained=retained)
                if found is None:
                    return None
                counted.labels("done" if found["ok"] else "refused").inc()
                return orjson.dumps(found)

            link.on_command = answer
        link.start()

    def report(self) -> dict[str, Any]:
        """The connection, for operators: the broker, since when it is there or away, and what waits, was dropped or was refused."""
        link = self._link
        return {
            "broker": f"{self._mqtt.host}:{self._mqtt.port}",
            "connected": link.connected,
            "for_s": link.for_s(),
            "reason": link.reason,
            "waiting": len(self._outbox),
            "dropped": self._outbox.dropped_total,
            "refused": self._outbox.refused_total,
            "refused_ago_s": link.refused_ago_s(),
            "refusal": link.refusal,
        }


def require_library() -> None:
    """Raises ConfigError where the extra `mqtt` is not installed."""
    if importlib.util.find_spec("aiomqtt") is None:
        raise ConfigError(MISSING)
