"""A real SGLang on CPU for the tests marked `sglang`, with the control plugin in it or without.

Set HMAS_SGLANG_PYTHON and HMAS_SGLANG_MODEL to have one started (`make test-sglang` does). It serves scripts/build_tiny_model.py's model.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUBS = Path(__file__).resolve().parent / "sglang_stubs"
START_LIMIT_S = 280
TOKEN = "a-token-of-the-tests"
MAX_RUNNING = 8
CHUNK = 512

OPTIONS = [
    *("--served-model-name", "tiny", "--host", "127.0.0.1", "--device", "cpu", "--attention-backend", "torch_native"),
    *("--disable-cuda-graph", "--max-total-tokens", "16384", "--max-running-requests", str(MAX_RUNNING)),
    *("--chunked-prefill-size", str(CHUNK), "--enable-metrics", "--enable-cache-report", "--load-snapshot-publish-interval", "1"),
    *("--enable-priority-scheduling", "--default-priority-value", "0", "--disable-priority-preemption"),
    # Without it an idle scheduler takes a whole processor.
    "--sleep-on-idle",
]


def served(log: Path, *, plugin: bool, options: tuple[str, ...] = ("--disable-overlap-schedule",)) -> Iterator[str]:
    """The address of a running SGLang, which is ended afterwards.

    Args:
        log: Where its output goes.
        plugin: Whether the control plugin, which is installed beside it, is loaded.
        options: More of its options.
    """
    python, model = (os.environ.get(f"HMAS_SGLANG_{name}") for name in ("PYTHON", "MODEL"))
    if not (python and model):
        pytest.skip("needs a real SGLang: set HMAS_SGLANG_PYTHON and HMAS_SGLANG_MODEL (make test-sglang does)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(ROOT / python), "-m", "sglang.launch_server", "--model-path", str(ROOT / model), "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": str(STUBS), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    environment |= {"HMAS_CONTROL_TOKEN": TOKEN, "SGLANG_PLUGINS": "hmas_control" if plugin else "none"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *OPTIONS, *options], env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent, start_new_session=True
        )
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
            assert process.poll() is None, "SGLang ended while it was tested"
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            # Its scheduler and detokenizer are processes of its session, and would outlive a server that was killed.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it has served its own warm-up request; its health route answers before that and takes a second."""
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, f"SGLang ended while it was starting: {log.read_bytes()[-2000:].decode(errors='replace')}"
        try:
            urllib.request.urlopen(f"{url}/v1/models", timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
        else:
            if b"ready to roll" in log.read_bytes():
                return
            time.sleep(0.05)
    pytest.fail(f"SGLang was not ready after {START_LIMIT_S} s")
