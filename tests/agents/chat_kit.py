"""A real HTTP server in a thread that answers chat completions as a test tells it: well, badly, without end, or not at all."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behave = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]
"""Writes an answer to a question."""


class Chat:
    """Where the server listens, and what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.paths: list[str] = []
        self.over = threading.Event()


@contextlib.contextmanager
def chat_server(behave: Callable[[Chat], Behave] | Behave, *, needs_chat: bool = False) -> Iterator[Chat]:
    """Runs one for as long as the block."""
    chat = Chat()
    act: Behave = behave(chat) if needs_chat else behave  # type: ignore[assignment, arg-type, call-arg]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            chat.asked.append(body)
            chat.paths.append(self.path)
            chat.keys.append(self.headers.get("Authorization", ""))
            with contextlib.suppress(OSError):
                act(self, body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    chat.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield chat
    finally:
        chat.over.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def closed_port() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def raw(handler: BaseHTTPRequestHandler, data: bytes, *, status: int = 200, kind: str = "application/json") -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def text_of(content: str | None, finish: str = "stop") -> bytes:
    """A chat completion with this text."""
    return json.dumps(
        {"id": "x", "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content}}]}
    ).encode()


def answer(policy: str, *, parameters: dict[str, str | None] | None = None, confidence: float = 1.0, **more: Any) -> str:
    """An answer of the schema's form."""
    return json.dumps({"reason": "because", "choice": {"policy": policy, "parameters": parameters or {}}, "confidence": confidence} | more)


def says(content: str | None, finish: str = "stop") -> Behave:
    """Always the same text."""
    return lambda handler, _body: raw(handler, text_of(content, finish))
