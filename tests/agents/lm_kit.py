"""Typed prompts for the tests of the training path: real ones where HMAS_DATA_DIR names them, and one way to run the training."""

import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASES = ROOT / "build" / "tiny-bases"
TASKS = {"Translation", "Extraction", "CodeGeneration", "MathReasoning", "Dialogue"}
"""Types that a tiny base can learn to tell apart from few rows in a minute or two."""


def real_prompts(target: Path, count: int) -> Path:
    """A file of `count` real typed prompts, in turn from every type of `TASKS`."""
    folder = os.environ.get("HMAS_DATA_DIR")
    if not folder:
        pytest.skip("needs typed prompts: set HMAS_DATA_DIR to a folder with prompts/typed_prompts.jsonl.gz")
    lines: dict[str, list[str]] = {}
    with gzip.open(Path(folder) / "prompts" / "typed_prompts.jsonl.gz", "rt", encoding="utf-8") as source:
        for line in source:
            task = json.loads(line)["task_type"]
            if task in TASKS:
                lines.setdefault(task, []).append(line)
    each = count // len(TASKS)
    target.write_text("".join(line for task in sorted(lines) for line in lines[task][:each]), encoding="utf-8")
    return target


def base(kind: str) -> Path:
    """The tiny base of a kind."""
    folder = BASES / kind
    if not (folder / "config.json").is_file():
        pytest.skip("needs the tiny bases: make test-train builds them")
    return folder


class Training:
    """A training run in a process of its own, as `hmas train perception --base` starts it."""

    def __init__(self, log: Path, *options: object) -> None:
        self.log = log
        command = [str(Path(sys.executable).with_name("hmas")), "train", "perception", *map(str, options), "--threads", "1"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def wait(self, limit_s: float = 900) -> int:
        return self.process.wait(limit_s)

    def until(self, text: str, limit_s: float = 600) -> None:
        deadline_s = time.monotonic() + limit_s
        while text not in self.said():
            assert self.process.poll() is None, f"ended before it said {text!r}:\n{self.said()}"
            assert time.monotonic() < deadline_s, f"never said {text!r}:\n{self.said()}"
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.wait()


@contextlib.contextmanager
def vllm_with_adapter(folder: Path, adapter: Path, log: Path) -> Iterator[str]:
    """The address of a real vLLM that serves a base and, by the name `perception`, an adapter on it."""
    with vllm(folder, log, "--enable-lora", "--max-lora-rank", "16", "--lora-modules", f"perception={adapter}") as url:
        yield url


@contextlib.contextmanager
def vllm(folder: Path, log: Path, *options: str, context: int = 2048) -> Iterator[str]:
    """The address of a real vLLM on CPU that serves the model in a folder."""
    python = os.environ.get("HMAS_VLLM_PYTHON")
    if not python:
        pytest.skip("needs a real vLLM: set HMAS_VLLM_PYTHON (make setup-vllm test-train does)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(ROOT / python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", str(context), "--max-num-seqs", "16"]
    command += ["--max-num-batched-tokens", "1024", "--kv-cache-memory-bytes", "67108864"]
    command += options
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "VLLM_PLUGINS": ""}
    environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        deadline_s = time.monotonic() + 400
        while True:
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            assert time.monotonic() < deadline_s, "vLLM was not ready in time"
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
