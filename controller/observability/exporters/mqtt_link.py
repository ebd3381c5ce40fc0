"""The connection to an MQTT broker: TLS, a session that outlives it, reconnecting, sending, and the commands that come in."""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiomqtt import Client, MqttError, ProtocolVersion, Will
from paho.mqtt.subscribeoptions import SubscribeOptions

from hmas.controller.config.mqtt import MqttConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.observability.exporters.mqtt_outbox import BREAKS_MOST, Outbox, Outgoing
from hmas.controller.observability.exporters.mqtt_sender import FIRST_ERROR, Sender, properties

KEEPALIVE_S = 15
TIMEOUT_S = 5.0
RETRY_FIRST_S, RETRY_MOST_S = 0.5, 30.0
INCOMING_MOST = 500
"""Commands received and not answered yet; further ones are dropped by the library, with a line in the log."""
PACKET_MOST_BYTES = 128 * 1024
ANSWER_TOPIC_MOST, ANSWER_LEVELS_MOST, ANSWER_MARK_MOST = 512, 100, 1024
"""Characters and levels of a response topic and bytes of correlation data; a command with more gets no answer."""
ERRORS = (MqttError, OSError, ValueError)
"""What a broker that is away, a wrong certificate or an unreadable file raises."""
log = logging.getLogger(__name__)

OnCommand = Callable[[str, bytes, bool], Awaitable[bytes | None]]
"""Answers a command: user, payload and whether it is retained; no answer for None."""


def password_of(mqtt: MqttConfig, env: Mapping[str, str]) -> str | None:
    """The password; None if there is none.

    Raises:
        ConfigError: The variable or the file that should hold it does not.
    """
    if mqtt.password_env:
        if not env.get(mqtt.password_env):
            raise ConfigError(f"mqtt.password_env: the environment has no {mqtt.password_env}, or it is empty")
        return env[mqtt.password_env]
    if mqtt.password_file:
        try:
            return Path(mqtt.password_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"mqtt.password_file: {mqtt.password_file!r} cannot be read: {error}") from error
    return None


def client_id(mqtt: MqttConfig) -> str:
    """The name of the session: the same one after a restart."""
    return mqtt.client_id or f"hmas-{socket.gethostname()}-{mqtt.prefix.replace('/', '-')}"


async def client_of(
    mqtt: MqttConfig, password: str | None, *, name: str, will: bytes | None = None, session_s: int = 0, known: bool = True
) -> Client:
    """A client that is not connected yet. The certificates are read now.

    The broker publishes `will` as the status when this client has gone without a word, and keeps its session, which has its name, for
    `session_s`. A client that is not `known` shows neither user nor certificate.

    Raises:
        OSError: A certificate cannot be read or used.
    """
    context = await asyncio.to_thread(_tls, mqtt, own=known) if mqtt.tls else None
    return Client(
        mqtt.host,
        mqtt.port,
        identifier=name,
        protocol=ProtocolVersion.V5,
        username=(mqtt.user or None) if known else None,
        password=password if known else None,
        tls_context=context,
        will=Will(status_topic(mqtt), will, qos=1, retain=True) if will is not None else None,
        clean_start=session_s == 0,
        properties=properties("CONNECT", SessionExpiryInterval=session_s, MaximumPacketSize=PACKET_MOST_BYTES),
        keepalive=KEEPALIVE_S,
        timeout=TIMEOUT_S,
        max_queued_incoming_messages=INCOMING_MOST,
    )


def status_topic(mqtt: MqttConfig) -> str:
    """Topic of the birth message and of the last will."""
    return f"{mqtt.prefix}/status"


def command_topic(mqtt: MqttConfig, user: str) -> str:
    """Topic of the commands of one user."""
    return f"{mqtt.prefix}/command/{user}"


class MqttLink:
    """Keeps a session at the broker until it is closed, whatever happens to the broker.

    Attributes:
        connected: Whether the broker is there now.
        reason: Why it is not, in words; empty while it is there, and before the first attempt has ended.
        on_change: Called when the broker has come, with an empty text, or has gone, with the reason; once for each reason.
        refusal: The last message that the broker did not take, and why; empty if there was none.
        on_refused: Called with `refusal`, once for each reason and connection: the event about it may be refused, too.
        on_command: Answers commands; None takes none.
    """

    def __init__(self, mqtt: MqttConfig, outbox: Outbox, *, birth: bytes, will: bytes, env: Mapping[str, str] | None = None) -> None:
        """Does not connect yet. `birth` is the status while the gateway runs, `will` once it has gone; `env` has the password.

        Raises:
            ConfigError: There is no password where the configuration says that it is.
        """
        self.connected = False
        self.reason = ""
        self._since_s = 0.0
        self.on_change: Callable[[str], None] = lambda _: None
        self.refusal = ""
        self._refused_s = 0.0
        self.on_refused: Callable[[str], None] = lambda _: None
        self._reasons: set[str] = set()
        self.on_command: OnCommand | None = None
        self._mqtt = mqtt
        self._outbox = outbox
        self._birth, self._will = birth, will
        self._password = password_of(mqtt, os.environ if env is None else env)
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connects in the background."""
        self._since_s = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._run())

    def for_s(self) -> float:
        """For how long the broker has been there, or away."""
        return asyncio.get_running_loop().time() - self._since_s

    def refused_ago_s(self) -> float:
        """Seconds since the broker last did not take a message, -1 if it took all."""
        return asyncio.get_running_loop().time() - self._refused_s if self.refusal else -1.0

    async def close(self) -> None:
        """Sends what is left and says goodbye if the broker is there; the caller bounds the time."""
        if self._task is None:
            return
        self._closing.set()
        if not self.connected:
            self._task.cancel()
        try:
            await asyncio.wait([self._task])
        finally:
            self._task.cancel()

    async def _run(self) -> None:
        retry_s = RETRY_FIRST_S
        clock = asyncio.get_running_loop()
        while True:
            began_s = clock.time()
            try:
                await self._session()
            except ERRORS as error:
                self._turn(connected=False, reason=_words(error))
            except Exception as error:
                log.exception("the connection to the MQTT broker failed")
                self._turn(connected=False, reason=f"{type(error).__name__}: {error}")
            if self._closing.is_set():
                return
            # Of two clients of one name each puts the other off, so a short connection is no reason to be quick again.
            if clock.time() - began_s > RETRY_MOST_S:
                retry_s = RETRY_FIRST_S
            await asyncio.sleep(retry_s)
            retry_s = min(RETRY_MOST_S, 2.0 * retry_s)

    def _turn(self, *, connected: bool, reason: str = "") -> None:
        """Notes whether the broker is there, and reports it where that or the reason has changed."""
        before, told = self.connected, self.reason
        if connected is not before:
            self._since_s = asyncio.get_running_loop().time()
        self.connected, self.reason = connected, reason
        if connected is not before or reason != told:
            self.on_change(reason)

    async def _tell(self, sender: Sender, messages: Sequence[Outgoing]) -> None:
        """Sends messages. One that the broker refuses is done with, too: it would refuse it again."""
        reasons = await asyncio.gather(*map(sender.send, messages))
        for message, reason in zip(messages, reasons, strict=True):
            if reason:
                self._lost(message, reason)

    def _lost(self, message: Outgoing, reason: str) -> None:
        self._outbox.count_refused()
        self._refused_s = asyncio.get_running_loop().time()
        self.refusal = f"{message.topic}: {reason}"
        if reason not in self._reasons:
            self._reasons.add(reason)
            self.on_refused(self.refusal)

    async def _session(self) -> None:
        """One connection, from its beginning until it breaks or the gateway closes."""
        mqtt = self._mqtt
        client = await client_of(
            mqtt, self._password, name=client_id(mqtt), will=self._will, session_s=mqtt.session_s if self.on_command else 0
        )
        sender = Sender(client)
        self._reasons.clear()
        async with client:
            await self._tell(sender, [Outgoing(status_topic(mqtt), self._birth, retain=True)])
            if self.on_command is not None:
                await _subscribe(client, [command_topic(mqtt, user) for user in mqtt.command_users])
            self._outbox.send_all_state()
            self._turn(connected=True)
            tasks = [asyncio.create_task(self._send(sender)), asyncio.create_task(self._receive(client))]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            except ERRORS as error:
                culprit = self._outbox.broke()
                if culprit is not None:
                    self._lost(culprit, f"broke the connection {BREAKS_MOST} times: {_words(error)}")
                raise
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, sender: Sender) -> None:
        """Sends until the gateway closes and all is sent."""
        closing = asyncio.create_task(self._closing.wait())
        try:
            while True:
                messages = self._outbox.take(sender.most)
                if messages:
                    await self._tell(sender, messages)
                    self._outbox.sent(messages)
                elif self._closing.is_set():
                    await self._tell(sender, [Outgoing(status_topic(self._mqtt), self._will, retain=True)])
                    return
                else:
                    filled = asyncio.create_task(self._outbox.filled.wait())
                    await asyncio.wait([filled, closing], return_when=asyncio.FIRST_COMPLETED)
                    filled.cancel()
        finally:
            closing.cancel()

    async def _receive(self, client: Client) -> None:
        """Answers commands, one after the other, until the connection breaks."""
        async for message in client.messages:
            before, _, user = str(message.topic).rpartition("/")
            payload = message.payload
            if self.on_command is None or f"{before}/{user}" != command_topic(self._mqtt, user) or not isinstance(payload, bytes):
                continue
            answer = await self.on_command(user, payload, bool(message.retain))
            topic: Any = getattr(message.properties, "ResponseTopic", None)
            mark: Any = getattr(message.properties, "CorrelationData", None)
            if answer is not None and self._may_answer(topic, mark):
                self._outbox.add(Outgoing(topic, answer, correlation=mark))

    def _may_answer(self, topic: Any, mark: Any) -> bool:
        """Whether an answer may go out: this client can write to topics that the sender of a command cannot."""
        own = f"{self._mqtt.prefix}/"
        return (
            isinstance(topic, str)
            and 0 < len(topic) <= ANSWER_TOPIC_MOST
            and topic.count("/") < ANSWER_LEVELS_MOST
            and len(mark or b"") <= ANSWER_MARK_MOST
            and not set(topic) & set("+#\0")
            and (not topic.startswith(own) or topic.startswith(f"{own}response/"))
        )


async def comes_back(client: Client, topic: str, within_s: float) -> bool:
    """Whether an empty message of this client, which every gateway ignores, comes back to it.

    Raises:
        MqttError: The client may not subscribe to the topic, or the broker is gone.
    """
    await _subscribe(client, [topic])
    if await Sender(client).send(Outgoing(topic, b"")):
        return False
    try:
        async with asyncio.timeout(within_s):
            async for message in client.messages:
                if str(message.topic) == topic:
                    return True
    except TimeoutError:
        pass
    return False


async def _subscribe(client: Client, topics: Sequence[str]) -> None:
    """Subscribes. Retained messages come once for a new subscription, and are told from others at any time.

    Raises:
        MqttError: The broker refuses one of them.
    """
    options: Any = SubscribeOptions
    codes: Any = await client.subscribe([(topic, options(qos=1, retainAsPublished=True, retainHandling=1)) for topic in topics])
    for topic, code in zip(topics, codes, strict=True):
        if int(getattr(code, "value", code)) >= FIRST_ERROR:
            raise MqttError(f"the broker refuses the subscription to {topic}: {code}")


def _words(error: Exception) -> str:
    """What an error says; of a broker that has hung up, with its reason."""
    text = str(error) or type(error).__name__
    return f"{text}: {error.__cause__}" if isinstance(error, MqttError) and error.__cause__ else text


def _tls(mqtt: MqttConfig, *, own: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(Path(mqtt.tls_ca).expanduser()) if mqtt.tls_ca else None)
    except OSError as error:
        raise OSError(f"mqtt.tls_ca: {mqtt.tls_ca!r} cannot be used: {error}") from error
    if mqtt.tls_cert and own:
        try:
            context.load_cert_chain(Path(mqtt.tls_cert).expanduser(), Path(mqtt.tls_key).expanduser())
        except OSError as error:
            raise OSError(f"mqtt.tls_cert and mqtt.tls_key: {mqtt.tls_cert!r} cannot be used: {error}") from error
    return context
