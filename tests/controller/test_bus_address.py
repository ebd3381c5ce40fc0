"""The address of a bus server as it is shown: no user, no password."""

import pytest

from hmas.cli.configuration import shown
from hmas.controller.bus.address import without_secrets
from hmas.controller.bus.link import Link
from hmas.controller.config.schema import Config
from hmas.controller.config.section import BusConfig


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://u:secret@h:6379/0", "redis://h:6379/0"),
        ("rediss://:se@cret@h:6379", "rediss://h:6379"),
        ("redis://:secret/secret@h:6379/0", "redis://h:6379/0"),
        ("redis://h:1/0?username=u&password=secret&db=2", "redis://h:1/0?db=2"),
        ("redis://h:1?pass%77ord=secret", "redis://h:1"),
        ("unix:///run/a@b.sock", "unix:///run/a@b.sock"),
        ("unix:///run/r.sock?db=1&password=se@cret", "unix:///run/r.sock?db=1"),
        ("unix://u:secret@/run/a@b.sock", "unix:///run/a@b.sock"),
        ("u:secret@h:1", "h:1"),
        ("", ""),
    ],
)
def test_user_and_password_are_left_out(url: str, seen: str):
    assert without_secrets(url) == seen
    assert Link(url).shown == seen
    assert shown(Config(bus=BusConfig(url=url))).bus.url == seen
