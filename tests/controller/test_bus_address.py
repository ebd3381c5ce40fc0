"""The address of a bus server as it is shown and as it is refused: no user, no password."""

import traceback

import pytest

from hmas.cli.configuration import shown
from hmas.controller.bus.address import without_secrets
from hmas.controller.bus.link import Link
from hmas.controller.config.loader import ConfigMistakes, load_config
from hmas.controller.config.schema import Config
from hmas.controller.config.section import BusConfig
from hmas.controller.core.errors import BusError


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


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret/x@h:6379/0",
        "redis://:secret#x@h:6379/0",
        "redis://u:secret?x@h:6379/0",
        "rediss://:secret[x@h:6379/0",
        "redis://:1/secret@h:6379/0",
        "redis://:1#secret@h:6379/0",
        "unix://u:secret/x@/run/r.sock",
        "redis://h:637900/0",
        "redis://h:6379o/0",
    ],
)
def test_an_address_that_cannot_be_read_is_a_mistake_of_the_configuration_that_quotes_no_password(url: str):
    with pytest.raises(ConfigMistakes) as caught:
        load_config(None, {"HMAS_BUS__URL": url})
    (mistake,) = caught.value.mistakes
    assert mistake.path == "bus.url"
    assert "a port from 0 to 65535" in mistake.message
    assert "%2F for /" in mistake.message
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://u:se%2Fc%23r%3Fe%5Bt@h:6379/0",
        "rediss://:se@cret@[::1]:6379/0?db=2",
        "redis://h:1?password=se@cret",
        "unix://u:secret@/run/a@b.sock?db=1",
    ],
)
def test_an_address_that_can_be_read_is_taken(url: str):
    assert load_config(None, {"HMAS_BUS__URL": url}).bus.url == url


@pytest.mark.parametrize("url", ["redis://:secret/x@h:6379/0", "redis://:secret#x@h:6379/0", "redis://:secret[x@h:6379/0"])
def test_a_client_refuses_an_address_without_quoting_its_password(url: str):
    with pytest.raises(BusError, match="is no address of a Redis server") as caught:
        Link(url).client()
    assert "secret" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__suppress_context__, "a log with the traceback does not show the parser's error either"
