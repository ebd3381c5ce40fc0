"""H-MAS as a user starts it: a process of `hmas up` in front of engines, with nothing configured but what is asked for."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import orjson

from hmas.planning import StudyError

READY_S = 120.0
STOP_S = 45.0
LONGEST_LINE = 1 << 20
CONFIG = "hmas.yaml"
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Stack(NamedTuple):
    """A running stack: addresses of its gateway and of the operators' API, the model that it serves, and its environment variables."""

    url: str
    admin: str
    model: str
    environment: Mapping[str, str] = NOTHING


@asynccontextmanager
async def hmas_up(
    engines: Sequence[str], folder: Path, *, options: Sequence[str] = (), config: Mapping[str, Any] = NOTHING, auth: bool = False
) -> AsyncIterator[Stack]:
    """Starts `hmas up`, yields where it is, stops it. HMAS_ variables of this process are not handed on.

    Args:
        engines: What `--engine` is given, once for each, such as `sim` or `vllm=http://127.0.0.1:8000`.
        folder: Its state, log (`up.log`) and configuration lie here; what an earlier stack has learnt there is removed.
        options: Further options, such as `--no-agents`.
        config: Its configuration document.
        auth: Whether clients need a key; else it is started with `--no-auth`.

    Raises:
        StudyError: It does not come up, or has ended before it is stopped.
    """
    words = ["up", "--json", *(() if auth else ("--no-auth",)), "--port", "0", "--admin-port", "0", *options]
    words += [word for engine in engines for word in ("--engine", engine)]
    words += ["--config", CONFIG] if config else []
    environment, log = _prepared(folder, config)
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "hmas", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=folder,
            start_new_session=True,
            limit=LONGEST_LINE,
        )
        try:
            yield (await _announced(process, log))._replace(environment=environment)
            if process.returncode is not None:
                raise StudyError(f"`hmas up` ended with status {process.returncode} under its run; see {log}")
        finally:
            await _stop(process)


def cancel_on_sigterm() -> None:
    """Makes SIGTERM cancel the running task. Stacks and engines are processes of their own: what ends this one must end them too."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _prepared(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, str], Path]:
    """Environment and log of a stack; its configuration lies in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if config:
        # JSON is YAML.
        (folder / CONFIG).write_bytes(orjson.dumps(dict(config)))
    state = folder.resolve() / "state"
    shutil.rmtree(state, ignore_errors=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HMAS_")}
    return environment | {"HMAS_STATE_DIR": str(state)}, folder / "up.log"


async def _announced(process: asyncio.subprocess.Process, log: Path) -> Stack:
    """What `hmas up --json` prints once all of it is ready."""
    assert process.stdout is not None
    text = b""
    try:
        async with asyncio.timeout(READY_S):
            async for line in process.stdout:
                text += line
                if line == b"}\n":
                    break
    except TimeoutError as error:
        raise StudyError(f"`hmas up` was not ready within {READY_S:g} s; see {log}") from error
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise StudyError(f"`hmas up` ended before it was ready: {_end_of(log)}") from error
    if down := [engine["name"] for engine in document["engines"] if not engine["healthy"]]:
        raise StudyError(f"{', '.join(down)}: not healthy when all should be ready; see {log}")
    models = [model for engine in document["engines"] for model in engine["models"]]
    if not models:
        raise StudyError(f"no engine serves a model; see {log}")
    return Stack(document["gateway"], document["admin"], models[0])


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
