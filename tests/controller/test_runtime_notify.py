"""sd_notify over a real datagram socket."""

import contextlib
import os
import socket

import pytest

from hmas.controller.runtime.notify import Notifier


@pytest.fixture
def manager(tmp_path):
    """A service manager's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify.sock"))
        sock.settimeout(5.0)
        yield sock


def test_the_messages(manager):
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready()
    notifier.ready("serving\non 127.0.0.1:8080")
    notifier.watchdog()
    notifier.ready("  two\nlines " + "x" * 500)
    notifier.stopping()
    assert manager.recv(4096) == b"READY=1"
    assert manager.recv(4096) == b"READY=1\nSTATUS=serving on 127.0.0.1:8080"
    assert manager.recv(4096) == b"WATCHDOG=1"
    status = manager.recv(4096)
    assert status.startswith(b"READY=1\nSTATUS=two lines xxx")
    assert len(status) == len(b"READY=1\nSTATUS=") + 400
    assert manager.recv(4096) == b"STOPPING=1"


def test_an_abstract_address():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"hmas-test-{os.getpid()}"
        sock.bind(f"\0{name}")
        sock.settimeout(5.0)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert sock.recv(100) == b"READY=1"


def test_without_a_manager_nothing_happens():
    notifier = Notifier({})
    notifier.ready()
    notifier.watchdog()


def test_a_manager_that_is_gone_raises_nothing(tmp_path):
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "none.sock")}).ready()


def test_a_manager_that_does_not_read_never_blocks(manager):
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    for _ in range(5000):
        notifier.watchdog()
    manager.setblocking(False)
    read = 0
    with contextlib.suppress(BlockingIOError):
        while manager.recv(100):
            read += 1
    assert 0 < read < 5000, "else its queue was never full"
