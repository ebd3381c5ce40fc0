"""The configurations that are compared, each started as a user starts it: by `hmas up`."""

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

from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.core.errors import HmasError
from hmas_lab.frontdoor.settings import PASS, PLAIN, PRODUCT

READY_S = 120.0
STOP_S = 45.0
LONGEST_LINE = 1 << 20
PASS_THROUGH: Mapping[str, Any] = MappingProxyType(
    {
        "agents": {"enabled": False},
        "scheduler": {
            "policy": "fcfs",
            "n_run": 256,
            "overdue": "keep",
            "fence": False,
            "late_service_share": 0.0,
            "late_confidence": 0.0,
            "tpot_guard": 0.0,
        },
    }
)
"""The gateway with nothing switched on: what arrives goes to an engine at once."""


class DoorBroken(HmasError):
    """A stack did not come up, or ended under its run; the measurement does not count."""


class Arm(NamedTuple):
    """A configuration: further options of `hmas up`, its configuration document, and the API key of each tenant if clients need one."""

    options: tuple[str, ...] = ()
    config: Mapping[str, Any] = MappingProxyType({})
    keys: Mapping[str, str] = MappingProxyType({})


def without(agent: str) -> str:
    """Name of the arm that leaves an agent out."""
    return f"without-{agent}"


def arm_of(name: str) -> Arm:
    """An arm by its name.

    Raises:
        DoorBroken: There is none of that name.
    """
    known = {PASS: Arm(config=PASS_THROUGH), PLAIN: Arm(("--no-agents",)), PRODUCT: Arm()}
    for left_out in AGENT_NAMES:
        known[without(left_out)] = Arm(("--agents", ",".join(agent for agent in AGENT_NAMES if agent != left_out)))
    if name not in known:
        raise DoorBroken(f"arm {name!r}; allowed: {', '.join(known)}")
    return known[name]


class Stack(NamedTuple):
    """A running stack: addresses of its gateway and of the operators' API, the model that it serves, and its environment variables."""

    url: str
    admin: str
    model: str
    environment: Mapping[str, str] = MappingProxyType({})


@asynccontextmanager
async def running_arm(name: str, engines: Sequence[str], folder: Path, arm: Arm | None = None) -> AsyncIterator[Stack]:
    """Starts a stack, yields where it is, and stops it.

    Args:
        name: The arm's.
        engines: What `--engine` is given, once for each.
        folder: Its state, log and configuration lie here; the stack starts with nothing of an earlier one.
        arm: The configuration; None for the one that is known by that name.

    Raises:
        DoorBroken: It does not come up.
    """
    words, environment, log = _prepared(arm or arm_of(name), engines, folder)
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
                raise DoorBroken(f"{name}: `hmas up` ended with status {process.returncode} under its run; see {log}")
        finally:
            await _stop(process)


def _prepared(arm: Arm, engines: Sequence[str], folder: Path) -> tuple[list[str], dict[str, str], Path]:
    """Words of the command line, environment and log of a stack; its configuration lies in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["up", "--json", *(() if arm.keys else ("--no-auth",)), "--port", "0", "--admin-port", "0", *arm.options]
    words += [word for engine in engines for word in ("--engine", engine)]
    if arm.config:
        path = folder / "hmas.yaml"
        # JSON is YAML.
        path.write_bytes(orjson.dumps(dict(arm.config)))
        words += ["--config", path.name]
    # What an earlier stack of this folder has learnt must not serve this one.
    shutil.rmtree(folder / "state", ignore_errors=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HMAS_")}
    environment["HMAS_STATE_DIR"] = str(folder.resolve() / "state")
    return words, environment, folder / "up.log"


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
        raise DoorBroken(f"`hmas up` was not ready within {READY_S:g} s; see {log}") from error
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise DoorBroken(f"`hmas up` ended before it was ready; see {log}") from error
    models = [model for engine in document["engines"] for model in engine["models"]]
    if not models:
        raise DoorBroken(f"no engine serves a model; see {log}")
    return Stack(document["gateway"], document["admin"], models[0])


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
