"""Override files while a gateway serves: written at once, or with a name or a text that the bus cannot carry."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from gateway_kit import eventually, running

from hmas.controller.config.override_directory import OverrideDirectory
from hmas.controller.control.overrides import Override

DOCUMENT = '{"version": 1, "author": "a", "reason": "%s", "expires": null, "policy": {"name": "sjf"}}'


def put_file(folder: Path, name: bytes, reason: str) -> None:
    """As an operator's editor does it: written aside, then moved."""
    folder.mkdir(exist_ok=True)
    aside = folder / ".aside"
    aside.write_text(DOCUMENT % reason)
    aside.rename(folder / os.fsdecode(name))


async def test_two_that_write_the_same_override_at_once_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with running(tmp_path) as rig:
        watch, inside, most = rig.gateway.watch, [0], [0]
        write = OverrideDirectory.write

        def slow(directory: OverrideDirectory, one: Override) -> Path:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.02)
            inside[0] -= 1
            return write(directory, one)

        monkeypatch.setattr(OverrideDirectory, "write", slow)
        texts = ("first", "second", "third")
        await asyncio.gather(*(watch.put(Override(id="x", author="a", reason=text, expires_s=None, policy="sjf")) for text in texts))
        assert most == [1]
        assert await watch.remove("x")
        assert watch.held == {}


async def test_one_that_has_expired_may_name_an_engine_that_has_left(tmp_path: Path):
    gone = '{"version": 1, "author": "a", "reason": "r", "expires": "2020-01-01T00:00:00Z", "engines": {"gpu-9": {"drain": true}}}'
    async with running(tmp_path) as rig:
        rig.overrides.mkdir(exist_ok=True)
        (rig.overrides / "old.json").write_text(gone)
        put_file(rig.overrides, b"new.json", "r")
        await eventually(lambda: rig.gateway.scheduler.policy == "sjf")
        assert rig.gateway.watch.errors == {}


async def test_a_file_whose_name_or_text_cannot_be_sent_stops_no_other(tmp_path: Path):
    async with running(tmp_path) as rig:
        for name, reason in ((b"bad\xff.json", "r"), (b"half.json", r"\ud83d"), (b"good.json", "r")):
            put_file(rig.overrides, name, reason)
        await eventually(lambda: rig.gateway.scheduler.policy == "sjf")
        assert set(rig.gateway.watch.errors) == {r"bad\udcff.json", "half.json"}
