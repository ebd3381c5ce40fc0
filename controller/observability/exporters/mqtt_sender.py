"""Sends messages to an MQTT broker, and reads what the broker says of each: aiomqtt drops the reason code of an acknowledgement."""

import asyncio
from typing import Any

from aiomqtt import Client, MqttCodeError, MqttError
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from hmas.controller.observability.exporters.mqtt_outbox import Outgoing

FIRST_ERROR = 128
"""Reason codes of MQTT 5 from here on are errors."""
HEADER_MOST_BYTES = 10
"""Bytes of a PUBLISH beside topic, payload and properties."""
BATCH = 20
"""Messages under way at once, if the broker takes so many; paho-mqtt holds further ones back."""


class Sender:
    """Publishes over one client, in place of its own `publish`, and keeps to what the broker has announced.

    Attributes:
        most: Messages that may be under way at once.
    """

    def __init__(self, client: Client) -> None:
        """Listens to the client's acknowledgements; the announced limits are known if it is not connected yet."""
        self.most = BATCH
        # aiomqtt passes on neither reason codes nor the properties of the connection.
        self._paho: Any = client._client  # noqa: SLF001
        self._timeout_s = client.timeout
        self._most_bytes: int | None = None
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._pass_on: Any = self._paho.on_connect
        self._paho.on_connect, self._paho.on_publish = self._on_connect, self._on_publish

    async def send(self, message: Outgoing) -> str:
        """Sends a message and returns why it is refused; an empty text if the broker has it.

        Raises:
            MqttError: The connection is broken, or the broker does not answer.
        """
        details = properties("PUBLISH", CorrelationData=message.correlation) if message.correlation else None
        size = HEADER_MOST_BYTES + sum(map(len, (message.topic.encode(), message.payload, details.pack() if details else b"")))
        if self._most_bytes is not None and size > self._most_bytes:
            return f"larger than the {self._most_bytes} bytes that the broker takes"
        try:
            sent = self._paho.publish(message.topic, message.payload, 1, message.retain, details)
        except ValueError as error:
            return str(error)
        if sent.rc:
            raise MqttCodeError(sent.rc, "Could not publish message")
        answer = self._asked[sent.mid] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(answer, self._timeout_s)
        except TimeoutError:
            raise MqttError("Operation timed out") from None
        finally:
            del self._asked[sent.mid]

    def _on_connect(self, client: Any, userdata: Any, flags: Any, code: Any, announced: Any) -> None:
        self._most_bytes = getattr(announced, "MaximumPacketSize", None)
        self.most = min(BATCH, getattr(announced, "ReceiveMaximum", BATCH))
        self._pass_on(client, userdata, flags, code, announced)

    def _on_publish(self, client: Any, userdata: Any, sent_id: int, code: Any, details: Any) -> None:  # noqa: ARG002
        answer = self._asked.get(sent_id)
        if answer is not None and not answer.done():
            answer.set_result(str(code) if code.value >= FIRST_ERROR else "")


def properties(packet: str, **values: object) -> Any:
    """The properties of a packet of MQTT 5."""
    kind: Any = Properties
    found = kind(getattr(PacketTypes, packet))
    for name, value in values.items():
        setattr(found, name, value)
    return found
