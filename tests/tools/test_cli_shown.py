"""What commands print of a bus with a password, and of events that were there before they were asked."""

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner

from hmas.cli import events as module
from hmas.cli import up
from hmas.controller.config.schema import Config
from hmas.controller.config.section import BusConfig


def event(number: int) -> dict[str, Any]:
    return {"sent_s": float(number), "source": "gateway", "kind": "k", "subject": f"s{number:04d}", "severity": "info"}


class Gateway:
    """A gateway with a thousand events, and one more at each poll after the first; then the user interrupts."""

    def __init__(self) -> None:
        self.events_ = [event(number) for number in range(1000)]
        self.polls = 0

    def events(self, limit: int) -> list[dict[str, Any]]:
        self.polls += 1
        if self.polls > 3:
            raise KeyboardInterrupt
        if self.polls > 1:
            self.events_.append(event(len(self.events_)))
        return self.events_[-1000:][-limit:]


def test_following_tells_no_older_event_as_news(monkeypatch: pytest.MonkeyPatch):
    gateway = Gateway()
    monkeypatch.setattr(module, "connect", lambda *_: gateway)
    monkeypatch.setattr(module, "POLL_S", 0.0)
    result = CliRunner().invoke(module.events, ["--follow", "--limit", "2"])
    assert [line.split()[-1] for line in result.output.splitlines() if " s" in line] == ["s0998", "s0999", "s1000", "s1001"]


def test_up_prints_no_password_of_the_bus():
    async def words() -> str:
        config = Config(bus=BusConfig(url="redis://u:secret@127.0.0.1:1/0"))
        async with up._bus_in_use(config) as bus:  # noqa: SLF001 - what a whole `hmas up` prints takes a server
            assert bus.url == "redis://u:secret@127.0.0.1:1/0", "the processes need it"
            return bus.words

    assert asyncio.run(words()) == "redis://127.0.0.1:1/0"
