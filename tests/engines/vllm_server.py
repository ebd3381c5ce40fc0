"""A real vLLM for the tests marked `vllm`, with the control plugin in it.

Set HMAS_VLLM_PYTHON and HMAS_VLLM_MODEL to have one started (`make test-vllm` does), or HMAS_VLLM_URL and HMAS_VLLM_TOKEN to one that was
started in the same way. It serves scripts/build_tiny_model.py's model.
"""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 280
TOKEN = "a-token-of-the-tests"

OPTIONS = [
    *("--served-model-name", "tiny", "--host", "127.0.0.1", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "32"),
    *("--max-num-batched-tokens", "1024", "--kv-cache-memory-bytes", "67108864", "--scheduling-policy", "priority"),
    *("--logits-processors", "hmas_lab.forced_length:ForcedLength"),
]
PLUGIN = ["--scheduler-cls", "hmas_engine_plugin.vllm.scheduler.HmasScheduler"]


def wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, "vLLM ended while it was starting"
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"vLLM was not ready after {START_LIMIT_S} s")


def served(log: Path) -> Iterator[str]:
    """The address of a running vLLM; ends it afterwards where it was started here."""
    url, python, model = (os.environ.get(f"HMAS_VLLM_{name}") for name in ("URL", "PYTHON", "MODEL"))
    if url:
        yield url
        return
    if not (python and model):
        pytest.skip("needs a real vLLM: set HMAS_VLLM_URL, or HMAS_VLLM_PYTHON and HMAS_VLLM_MODEL (make test-vllm does)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ["-m", "vllm.entrypoints.openai.api_server"]
    if os.environ.get("HMAS_VLLM_OVERLAP"):
        server = [str(Path(__file__).with_name("vllm_overlapping.py"))]
    command = [str(ROOT / python), *server, "--model", str(ROOT / model), "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "lab"), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "2"}
    environment |= {"VLLM_PLUGINS": "hmas_control", "HMAS_CONTROL_TOKEN": TOKEN}
    with log.open("wb") as output:
        process = subprocess.Popen([*command, *OPTIONS, *PLUGIN], env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def control_token() -> str:
    """The token that the running vLLM's control plugin asks for."""
    return os.environ.get("HMAS_VLLM_TOKEN", TOKEN)
