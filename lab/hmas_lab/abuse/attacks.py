"""Clients that harm others, by mistake or on purpose: each sends bytes over plain sockets and notes what it is answered.

    python -m hmas_lab.abuse.attacks HOST PORT MODEL SECONDS

runs all kinds side by side for so many seconds, in a process of its own, and prints what each was answered as JSON.
"""

import asyncio
import json
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

import msgspec

MB = 1 << 20
PATH = "/v1/chat/completions"
PROMPT_PATH = "/v1/completions"
ANSWER_S = 20.0
"""How long an attacker waits for an answer before it notes that none came."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: closing resets the connection at once."""
UNREAD_TOKENS, UNREAD_STREAMS = 256, 6
SILENT_CONNECTIONS = 20
GONE, NO_ANSWER = "connection closed", "no answer"


class Target(msgspec.Struct, frozen=True):
    """The gateway's address and a model that it serves."""

    host: str
    port: int
    model: str


def head(path: str, *fields: str) -> bytes:
    """The head of a POST request with JSON, and further header lines."""
    return "\r\n".join((f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *fields, "", "")).encode()


def whole(path: str, body: bytes) -> bytes:
    """A whole POST request."""
    return head(path, f"content-length: {len(body)}") + body


def chat(target: Target, **fields: object) -> bytes:
    """A small chat request's body."""
    return json.dumps({"model": target.model, "messages": [{"role": "user", "content": "hello"}], **fields}).encode()


async def ask(target: Target, *pieces: bytes) -> str:
    """Sends bytes on a connection of its own; returns the status of the answer, or that none came."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        for piece in pieces:
            writer.write(piece)
        async with asyncio.timeout(ANSWER_S):
            line = await reader.readline()
        return line.split()[1].decode() if line.startswith(b"HTTP/1.1 ") else GONE
    except TimeoutError:
        return NO_ANSWER
    except ConnectionError:
        return GONE
    finally:
        writer.close()


async def leave(target: Target, data: bytes, after_s: float) -> str:
    """Sends bytes and resets the connection after a while."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    with suppress(ConnectionError):
        writer.write(data)
        with suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await writer.drain()
                await reader.read(1)
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
    return "left"


async def lists(target: Target) -> str:
    """A prompt of four million texts."""
    return await ask(target, whole(PROMPT_PATH, b'{"model":"%b","prompt":["a"%b]}' % (target.model.encode(), b',"a"' * (4 * MB - 64))))


async def parts(target: Target) -> str:
    """A message of half a million content parts."""
    text = b'{"type":"text","text":"a"}'
    body = b'{"model":"%b","messages":[{"role":"user","content":[%b]}]}' % (target.model.encode(), b",".join([text] * (MB // 2)))
    return await ask(target, whole(PATH, body))


async def leavers(target: Target) -> str:
    """A body of 4 MB that parses into a million lists, from a client that leaves while the engine works."""
    body = chat(target, max_tokens=200)[:-1] + b',"x":[[]' + b",[]" * (MB + MB // 4) + b"]}"
    return await leave(target, whole(PATH, body), 0.3)


async def uploads(target: Target) -> str:
    """An upload of 16 MB that is reset before its end."""
    return await leave(target, head(PATH, f"content-length: {16 * MB}") + b" " * (15 * MB), 0.5)


async def chunks(target: Target) -> str:
    """A body in half a million chunks of one byte."""
    return await ask(target, head(PATH, "transfer-encoding: chunked"), b"1\r\n \r\n" * (MB // 2), b"0\r\n\r\n")


async def unread(target: Target) -> str:
    """Streams whose client does not read."""
    sockets = []
    for _ in range(UNREAD_STREAMS):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (target.host, target.port))
        await asyncio.get_running_loop().sock_sendall(sock, whole(PATH, chat(target, stream=True, max_tokens=UNREAD_TOKENS)))
        sockets.append(sock)
    await asyncio.sleep(3.0)
    for sock in sockets:
        sock.close()
    return "left"


async def silent(target: Target) -> str:
    """Connections that send the beginning of a head, and nothing more."""
    writers = [(await asyncio.open_connection(target.host, target.port))[1] for _ in range(SILENT_CONNECTIONS)]
    for writer in writers:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n")
    await asyncio.sleep(3.0)
    for writer in writers:
        writer.close()
    return "left"


async def ambiguous(target: Target) -> str:
    """Requests that two parsers could read in two ways, and mistakes in JSON."""
    body = chat(target)
    length = f"content-length: {len(body)}"
    found = [
        await ask(target, head(PATH, length, "transfer-encoding: chunked") + body),
        await ask(target, head(PATH, "Transfer-Encoding: cow", "transfer-encoding: chunked") + b"0\r\n\r\n"),
        await ask(target, head(PATH, length, "Authorization: Bearer wrong", "authorization: Bearer right") + body),
        await ask(target, whole(PATH, b'{"model":"other",' + body[1:])),
        await ask(target, whole(PATH, b"[" * 100_000)),
        await ask(target, whole(PATH, body[:-1])),
    ]
    return " ".join(found)


ATTACKS: Mapping[str, Callable[[Target], Awaitable[str]]] = MappingProxyType(
    {attack.__name__: attack for attack in (lists, parts, leavers, uploads, chunks, unread, silent, ambiguous)}
)


async def attack(target: Target, seconds: float) -> dict[str, dict[str, int]]:
    """Runs all kinds side by side, each one request after the other; returns what each was answered, and how often."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in ATTACKS}

    async def again(name: str) -> None:
        while loop.time() < end_s:
            try:
                outcomes[name][await ATTACKS[name](target)] += 1
            except OSError as error:
                outcomes[name][type(error).__name__] += 1
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as group:
        for name in ATTACKS:
            group.create_task(again(name))
    return {name: dict(count) for name, count in outcomes.items()}


def main() -> None:
    """Runs the attacks at the lowest priority: what they cost on this side must not slow the clients beside them."""
    os.nice(19)
    host, port, model, seconds = sys.argv[1:]
    outcomes = asyncio.run(attack(Target(host, int(port), model), float(seconds)))
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main()
