"""The gateway's ports outlive the gateway: whoever starts it holds them, and connections wait while it is started again."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_cli_up import ROOT, Up, chat, environment, get

from hmas.controller.runtime.ports import bound_sockets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
RATE_RPS = 30.0
BEFORE_S, AFTER_S = 2.0, 5.0
ANSWER_S = 40.0
KILLED_WITHIN_S = 0.1
"""A process that was sent SIGKILL may go on for a moment before it ends."""


@dataclass
class Sent:
    """One request on a connection of its own: when it was connected, and what became of it."""

    connected_s: float = 0.0
    refused: bool = False
    status: int = 0
    ended_s: float = 0.0


async def send(host: str, port: int, body: bytes) -> Sent:
    sent = Sent()
    loop = asyncio.get_running_loop()
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        sent.refused = True
        return sent
    sent.connected_s = loop.time()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    with contextlib.suppress(OSError):
        async with asyncio.timeout(ANSWER_S):
            writer.write(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body))
            answer = await reader.read()
        # A whole answer: an answer that was cut off does not count as one.
        if answer.endswith(b"\r\n0\r\n\r\n") or b"content-length" in answer:
            sent.status = int(answer.split(b" ", 2)[1])
    sent.ended_s = loop.time()
    writer.transport.abort()
    return sent


async def steady_load(doc: dict, kill) -> tuple[float, list[Sent]]:
    """Requests at a steady rate, with a kill among them; returns when that was, and all requests."""
    loop = asyncio.get_running_loop()
    host, port = doc["gateway"].removeprefix("http://").split(":")
    message = {"model": doc["engines"][0]["models"][0], "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}
    body = json.dumps(message).encode()
    tasks, killed_s, start_s = [], 0.0, loop.time()
    for number in range(int(RATE_RPS * (BEFORE_S + AFTER_S))):
        await asyncio.sleep(max(0.0, start_s + number / RATE_RPS - loop.time()))
        if not killed_s and number >= RATE_RPS * BEFORE_S:
            killed_s = loop.time()
            kill()
        tasks.append(asyncio.create_task(send(host, int(port), body)))
    return killed_s, await asyncio.gather(*tasks)


def test_a_killed_gateway_refuses_no_connection(tmp_path: Path):
    with Up(tmp_path, "--engine", "sim", "--no-auth", "--no-agents") as up:
        doc = up.announced()
        chat(doc)
        gateway = up.child("run gateway")
        killed_s, requests = asyncio.run(steady_load(doc, lambda: os.kill(gateway, signal.SIGKILL)))
        assert up.child("run gateway") != gateway
        assert not [sent for sent in requests if sent.refused]
        lost = [sent for sent in requests if sent.status != 200]
        assert all(sent.connected_s < killed_s + KILLED_WITHIN_S for sent in lost), "only requests in progress are lost"
        # Some came while nobody served, and waited for the new process.
        waited = [sent for sent in requests if sent.connected_s > killed_s + KILLED_WITHIN_S and sent.ended_s - sent.connected_s > 0.5]
        assert waited
        assert {sent.status for sent in waited} == {200}
        # The operators' port is held likewise, and the address is free once all has ended.
        assert up.hmas("status")[0] == 0
        assert up.stop() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(tuple(doc["gateway"].removeprefix("http://").split(":")))


PASS_ON = (
    "import os, sys\n"
    "for target, number in enumerate(map(int, sys.argv[1].split(',')), 3):\n"
    "    os.dup2(number, target)\n"
    "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': str(sys.argv[1].count(',') + 1)}\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'hmas', 'run', 'gateway'])\n"
)
"""Starts a gateway as a socket unit of systemd does: the sockets are the files 3 and up, and two variables say so."""


def started_with(sockets: list[socket.socket], folder: Path, **env: str) -> subprocess.Popen:
    # High numbers, which the program above does not overwrite.
    numbers = [fcntl.fcntl(sock, fcntl.F_DUPFD, 50) for sock in sockets]
    settings = {"HMAS_AGENTS__ENABLED": "false", "HMAS_GATEWAY__NO_AUTH": "true", **env}
    command = [sys.executable, "-c", PASS_ON, ",".join(map(str, numbers))]
    try:
        return subprocess.Popen(
            command, pass_fds=numbers, env=environment(folder) | settings, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
    finally:
        for number in numbers:
            os.close(number)


def test_a_gateway_takes_the_sockets_of_systemd(tmp_path: Path):
    public, admin = bound_sockets("127.0.0.1", 0) + bound_sockets("127.0.0.1", 0)
    with public, admin:
        port, admin_port = public.getsockname()[1], admin.getsockname()[1]
        ports = {"HMAS_GATEWAY__PORT": str(port), "HMAS_GATEWAY__ADMIN_PORT": str(admin_port)}
        # systemd listens before it starts the service.
        public.listen(16)
        admin.listen(16)
        with started_with([admin, public], tmp_path, **ports) as process:
            # This connection waits until the gateway serves.
            assert get(f"http://127.0.0.1:{port}/health")[0] == 200
            assert get(f"http://127.0.0.1:{admin_port}/admin/status")[0] == 401
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
            assert process.returncode == 0
        # The sockets are open still: a connection waits for the next gateway.
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_a_socket_of_another_address_is_refused(tmp_path: Path):
    (sock,) = bound_sockets("127.0.0.1", 0)
    port = sock.getsockname()[1]
    with sock, started_with([sock], tmp_path) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"started with a socket of 127.0.0.1 port {port}".encode() in errors
    assert b"127.0.0.1 port 8080 or 127.0.0.1 port 8081" in errors
