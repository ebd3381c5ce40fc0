"""The section `mqtt`: contradictions are refused where the configuration is read."""

import importlib.util
import json

import pytest
from gateway_kit import running

from hmas.controller.config.loader import ConfigMistakes, advice, load_config
from hmas.controller.config.mqtt import MqttConfig
from hmas.controller.core.errors import ConfigError

SAFE = "  host: broker\n  user: gateway\n  commands: true\n  command_users: [alice]\n"


@pytest.mark.parametrize(
    ("text", "setting", "message"),
    [
        (SAFE + "  tls: false\n", "mqtt.commands", "only over TLS"),
        (SAFE.replace("  user: gateway\n", ""), "mqtt.commands", "with one of the two"),
        (SAFE.replace("[alice]", "[]"), "mqtt.command_users", "the users that may send commands"),
        (SAFE.replace("alice", "'#'"), "mqtt.command_users[0]", "text matching"),
        (SAFE + "  tls_ca: nowhere.pem\n", "mqtt.tls_ca", "a file that is there"),
        ("  prefix: /hmas\n", "mqtt.prefix", "text matching"),
        ("  host: broker\n  password_env: SECRET\n", "mqtt.user", "the user that it belongs to"),
    ],
)
def test_contradictions(tmp_path, text, setting, message):
    file = tmp_path / "hmas.yaml"
    file.write_text("mqtt:\n" + text)
    with pytest.raises(ConfigMistakes) as caught:
        load_config(file, {})
    (mistake,) = caught.value.mistakes
    assert mistake.path == setting
    assert message in mistake.message


@pytest.mark.parametrize("topic", ["", "#", "hm+as", "hmas/#", "hm\0as", "hmas\n", "$SYS", "$share/a", "hmas//a", "a" * 66_000])
@pytest.mark.parametrize("setting", ["prefix", "command_users[0]"])
def test_what_cannot_be_a_topic_is_refused(tmp_path, setting, topic):
    file = tmp_path / "hmas.yaml"
    file.write_text(json.dumps({"mqtt": {"prefix": topic} if setting == "prefix" else {"command_users": [topic]}}))
    with pytest.raises(ConfigMistakes) as caught:
        load_config(file, {})
    (mistake,) = caught.value.mistakes
    assert mistake.path == f"mqtt.{setting}"
    assert mistake.message.startswith(f"got {topic[:20]!r}"[:-1]), "the value, the beginning of a long one"
    assert "allowed: text matching ^[A-Za-z0-9" in mistake.message


def test_what_is_allowed_and_probably_not_intended(tmp_path):
    file = tmp_path / "hmas.yaml"
    file.write_text("mqtt:\n  host: broker\n  user: gateway\n  password_env: SECRET\n  tls: false\n")
    found = [word for word in advice(load_config(file, {}), {}) if word.startswith("mqtt")]
    assert [word.split(":")[0] for word in found] == ["mqtt.password_env", "mqtt.tls"]
    assert not load_config(None, {}).mqtt.host, "absent: nothing runs"


async def test_a_missing_library_is_told_before_the_gateway_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"aiomqtt is not installed.*h-mas\[mqtt\]"):
        async with running(tmp_path, mqtt=MqttConfig(host="127.0.0.1")):
            pass
