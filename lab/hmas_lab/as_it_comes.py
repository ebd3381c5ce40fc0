"""H-MAS as a user starts it: a process of `hmas up` in front of one engine, with nothing configured but that engine's address."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

from hmas.planning import StudyError

START_S = 60.0
STOP_S = 30.0
ROOT = Path(__file__).resolve().parents[2]
NOTHING: Mapping[str, str] = MappingProxyType({})


@asynccontextmanager
async def hmas_up(engine: str, folder: Path, options: Sequence[str] = (), env: Mapping[str, str] = NOTHING) -> AsyncIterator[str]:
    """Starts `hmas up --engine ENGINE --no-auth`, yields the gateway's address, stops it.

    Args:
        engine: As `--engine` takes it, such as `vllm=http://127.0.0.1:8000`.
        folder: Its home directory: state and log (`up.log`) go there.
        options: Further options, such as `--no-agents`.
        env: Further environment variables. HMAS_ variables of this process are not handed on.

    Raises:
        StudyError: It does not start within a minute; the message has the end of its log.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HMAS_")}
    environment = {**clean, "PYTHONPATH": str(ROOT), "HOME": str(folder), **env}
    command = [sys.executable, "-m", "hmas", "up", "--json", "--engine", engine, "--no-auth", "--port", "0", "--admin-port", "0", *options]
    log = folder / "up.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=output, env=environment, cwd=folder, start_new_session=True
        )
    try:
        yield await _address(process, log)
    finally:
        await _stop(process)


async def _address(process: asyncio.subprocess.Process, log: Path) -> str:
    """The address out of the document that `hmas up --json` prints as soon as it serves."""
    assert process.stdout is not None
    text = b""
    try:
        async with asyncio.timeout(START_S):
            while not text.endswith(b"\n}\n"):
                line = await process.stdout.readline()
                if not line:
                    break
                text += line
        address: str = json.loads(text)["gateway"]
    except (TimeoutError, ValueError, KeyError):
        raise StudyError(f"`hmas up` did not start: {_end_of(log)}") from None
    return address


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
