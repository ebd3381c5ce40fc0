"""Where the clients' checks run: a process of `hmas up` before embedded engines or before a real vLLM, and that engine by itself.

The environment of these tests has the clients and pytest, not H-MAS: HMAS_PYTHON names the Python that has it, .venv/bin/python by default.
HMAS_VLLM_PYTHON and HMAS_VLLM_MODEL name a vLLM and a model with a chat template, as `make test-clients` sets them.
"""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_S = 280.0
VLLM_OPTIONS = [
    *("--served-model-name", "tiny", "--host", "127.0.0.1", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "1024", "--kv-cache-memory-bytes", "134217728", "--scheduling-policy", "priority"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-prompt-tokens-details"),
]


@dataclass(frozen=True)
class Place:
    """An engine, the gateway before it, and the model of both. `kind`: embedded or vllm."""

    kind: str
    engine: str
    gateway: str
    model: str

    @property
    def embedded(self) -> bool:
        return self.kind == "embedded"


@contextmanager
def started(command: list[str], environment: dict[str, str], folder: Path, log: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own session, ended afterwards."""
    with (folder / log).open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextmanager
def hmas_up(folder: Path, *engines: str) -> Iterator[dict[str, Any]]:
    """What `hmas up --json` says of itself."""
    python = ROOT / os.environ.get("HMAS_PYTHON", ".venv/bin/python")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HMAS_", "PYTHON"))}
    environment = {**clean, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    options = [word for engine in engines for word in ("--engine", engine)]
    command = [str(python), "-m", "hmas", "up", "--json", "--no-auth", "--no-agents", "--port", "0", "--admin-port", "0", *options]
    with started(command, environment, folder, "up.log") as process:
        assert process.stdout is not None
        text = b""
        for line in process.stdout:
            text += line
            if line == b"}\n":
                break
        assert text.endswith(b"}\n"), (folder / "up.log").read_text(errors="replace")[-3000:]
        yield json.loads(text)


@contextmanager
def vllm_up(folder: Path) -> Iterator[str]:
    """The address of a real vLLM that keeps responses."""
    python, model = os.environ.get("HMAS_VLLM_PYTHON"), os.environ.get("HMAS_VLLM_MODEL")
    if not (python and model):
        pytest.skip("needs a real vLLM: set HMAS_VLLM_PYTHON and HMAS_VLLM_MODEL (make test-clients does where build/vllm is there)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(ROOT / model), "--port", str(port)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "2"}
    environment |= {"VLLM_ENABLE_RESPONSES_API_STORE": "1", "VLLM_PLUGINS": ""}
    url = f"http://127.0.0.1:{port}"
    with (folder / "vllm.log").open("wb") as output:
        process = subprocess.Popen([str(ROOT / python), *server, *VLLM_OPTIONS], env=environment, cwd=folder, stdout=output, stderr=output)
    try:
        deadline_s = time.monotonic() + START_S
        while not answers(f"{url}/health"):
            assert process.poll() is None, (folder / "vllm.log").read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline_s, "vLLM was not ready in time"
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def outcome(ask: Callable[[str, str], Any], url: str, model: str) -> Any:
    """What a client made of it; of an error its class and status, since the gateway words some errors in its own way."""
    try:
        return ask(url, model)
    except Exception as error:  # noqa: BLE001 - whatever a client raises is its outcome
        return "raised", type(error).__name__, getattr(error, "status_code", None), str(error)[:300]


def same(place: Place, ask: Callable[[str, str], Any], *, fails: bool | None = False) -> Any:
    """Asks the engine by itself and the gateway before it: both have the same outcome. Returns it.

    Args:
        place: Both addresses.
        ask: Takes the address without a path, and the model; returns what is compared.
        fails: Whether an error is the right outcome; None if that depends on what a model writes.
    """
    direct, through = outcome(ask, place.engine, place.model), outcome(ask, place.gateway, place.model)
    raised = isinstance(direct, tuple) and direct[:1] == ("raised",)
    assert fails in (None, raised), f"the engine by itself: {direct}"
    if raised:
        assert through[:3] == direct[:3], f"engine: {direct}, gateway: {through}"
    else:
        assert through == direct
    return direct
