"""A real mosquitto with TLS, users and an ACL on a port of its own, and clients of it."""

import asyncio
import importlib.util
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import orjson
from gateway_kit import eventually
from typing_kit import fenced

from hmas.controller.config.mqtt import MqttConfig
from hmas.controller.runtime.ports import free_port

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/sbin")
NEEDED = {
    "mosquitto (Debian: apt-get install mosquitto)": MOSQUITTO,
    "mosquitto_passwd": shutil.which("mosquitto_passwd"),
    "openssl": shutil.which("openssl"),
    "aiomqtt (the extra mqtt)": importlib.util.find_spec("aiomqtt"),
}
MISSING = ", ".join(name for name, found in NEEDED.items() if not found)
USERS = ("gateway", "alice", "rules")
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "mqtt.md").read_text()
ACL = fenced(PAGE, "acl")
WAIT_S = 10.0


def openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path, ca: str = "ca") -> None:
    """A certificate authority, a certificate of 127.0.0.1 and one of the client `gateway`."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", f"/CN={ca}", "-keyout", f"{ca}.key", "-out", f"{ca}.pem", folder=folder)
    for name, extension in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
        subject = "gateway" if name == "client" else "127.0.0.1"
        openssl("req", *key, "-subj", f"/CN={subject}", "-keyout", f"{name}.key", "-out", f"{name}.csr", folder=folder)
        (folder / "extension").write_text(extension)
        signing = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2", "-extfile", "extension")
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem", folder=folder)


class Broker:
    """One mosquitto; the password of each user is its name. It keeps its sessions and retained messages over a restart."""

    def __init__(self, folder: Path, certificates: Path, *, acl: str = ACL, by_certificate: bool = False, limits: str = "") -> None:
        self.folder, self.certificates, self.port = folder, certificates, free_port()
        folder.mkdir(exist_ok=True)
        (folder / "acl").write_text(acl)
        (folder / "users").touch(mode=0o600)
        for user in USERS:
            subprocess.run(["mosquitto_passwd", "-b", str(folder / "users"), user, user], check=True, capture_output=True)
        who = "require_certificate true\nuse_identity_as_username true" if by_certificate else f"password_file {folder}/users"
        (folder / "mosquitto.conf").write_text(
            f"user root\npersistence true\npersistence_location {folder}/\nlistener {self.port} 127.0.0.1\nallow_anonymous false\n"
            f"cafile {certificates}/ca.pem\ncertfile {certificates}/server.pem\nkeyfile {certificates}/server.key\n{who}\n"
            f"acl_file {folder}/acl\n{limits}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._process = await asyncio.to_thread(self._spawn)
        await eventually(self._answers, WAIT_S)

    async def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self._process.wait, WAIT_S)
            self._process = None

    def _spawn(self) -> "subprocess.Popen[bytes]":
        assert MOSQUITTO is not None
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen([MOSQUITTO, "-c", str(self.folder / "mosquitto.conf")], stdout=log, stderr=log)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def config(self, **fields: Any) -> MqttConfig:
        """The section of a gateway that takes commands of alice and rules."""
        password = self.folder / "gateway.password"
        password.write_text("gateway\n")
        known: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "tls_ca": str(self.certificates / "ca.pem"),
            "user": "gateway",
            "password_file": str(password),
            "client_id": "gateway-of-the-test",
            "period_s": 0.05,
            "commands": True,
            "command_users": ["alice", "rules"],
        }
        return MqttConfig(**(known | fields))

    @asynccontextmanager
    async def client(self, user: str = "alice", **fields: Any) -> AsyncIterator["Listener"]:
        """A client of another program, which hears all that it may."""
        from aiomqtt import Client, ProtocolVersion, TLSParameters

        tls = TLSParameters(ca_certs=str(self.certificates / "ca.pem"))
        more: dict[str, Any] = {"username": user, "password": user, "tls_params": tls, "protocol": ProtocolVersion.V5} | fields
        async with Client("127.0.0.1", self.port, **more) as client:
            listener = Listener(client, user)
            await client.subscribe("hmas/#", qos=1)
            reading = asyncio.create_task(listener.read())
            try:
                yield listener
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


def lasting() -> dict[str, Any]:
    """Arguments of a client whose session outlives its connection."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 600
    return {"identifier": "lasting", "clean_start": False, "properties": properties}


class Listener:
    """What a client has received, and the commands that it sends."""

    def __init__(self, client: Any, user: str) -> None:
        self.client, self.user = client, user
        self.messages: list[Any] = []

    async def read(self) -> None:
        async for message in self.client.messages:
            self.messages.append(message)

    def on(self, topic: str) -> list[Any]:
        """The documents that came on a topic."""
        return [orjson.loads(message.payload) for message in self.messages if str(message.topic) == f"hmas/{topic}"]

    async def hears(self, topic: str, **values: Any) -> Any:
        """The first document on a topic with these values."""
        found: list[Any] = []

        def heard() -> bool:
            found[:] = [one for one in self.on(topic) if values.items() <= one.items()]
            return bool(found)

        await eventually(heard, WAIT_S)
        return found[0]

    async def send(self, command: object, *, to: str = "", answer_on: str = "", retain: bool = False, mark: bytes = b"") -> None:
        """Sends a command, a document or raw bytes."""
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic = answer_on or f"hmas/response/{self.user}"
        properties.CorrelationData = mark
        payload = command if isinstance(command, bytes) else orjson.dumps(command)
        await self.client.publish(f"hmas/command/{to or self.user}", payload, qos=1, retain=retain, properties=properties)

    async def ask(self, command: object, *, retain: bool = False) -> Any:
        """Sends a command and returns the answer to it, which is known by its correlation data."""
        mark = f"mark-{len(self.messages)}-{id(command)}".encode()
        await self.send(command, retain=retain, mark=mark)

        def answers() -> list[Any]:
            return [message for message in self.messages if getattr(message.properties, "CorrelationData", b"") == mark]

        await eventually(lambda: any("/response/" in str(one.topic) for one in answers()), WAIT_S)
        return orjson.loads(next(one.payload for one in answers() if "/response/" in str(one.topic)))
