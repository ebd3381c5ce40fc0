"""The operators' commands and `hmas doctor` beside a gateway that serves, with a configuration that has a mistake by now."""

import json
import os
import socket
import time

import pytest
from installation_kit import TOKEN, Installation, commands

from hmas.cli import doctor
from hmas.controller.config.schema import Config, EngineConfig
from hmas.controller.runtime.clock import SystemClock


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    with Installation(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture
def hmas(installation, capsys, monkeypatch):
    for name in [name for name in os.environ if name.startswith("HMAS_")]:
        monkeypatch.delenv(name)
    yield from commands(installation, capsys, monkeypatch)


def checks(hmas):
    """Doctor's findings as (name, state)."""
    return json.loads(hmas("doctor", "--json")[1])["checks"]


def names(found, state):
    return {check["name"] for check in found if check["state"] == state}


@pytest.fixture
def config(tmp_path, monkeypatch, installation):
    """Writes the configuration, in which the address of the gateway stands; the token is no variable."""
    file = tmp_path / "hmas.yaml"
    monkeypatch.setenv("HMAS_CONFIG", str(file))

    def write(rest, *, host="127.0.0.1"):
        port = installation.admin.rpartition(":")[2]
        file.write_text(f"state_dir: {tmp_path}\ngateway: {{admin_host: {host}, admin_port: {port}}}\n{rest}")

    write("")
    return write


@pytest.mark.parametrize(("ago_s", "state"), [(-1.0, "OK"), (60.0, "WARN"), (3700.0, "OK")])
def test_a_message_that_a_broker_refused_is_a_warning_for_an_hour(ago_s, state):
    there = {"broker": "b:1883", "connected": True, "for_s": 9000.0, "reason": "", "waiting": 0, "dropped": 0}
    found = doctor.check_mqtt(there | {"refused": int(ago_s > 0.0), "refused_ago_s": ago_s, "refusal": "t: no"})
    assert (found.state, "did not take" in found.found) == (state, ago_s > 0.0)


@pytest.mark.parametrize(
    "rest", ["scheduler: {n_rum: 4}\n", "engines_file: /nowhere/engines.json\n", "engines: 7\ntenants: {a: {weight: x}}\n"]
)
def test_a_mistake_elsewhere_locks_nobody_out(hmas, config, monkeypatch, tmp_path, rest):
    config(rest)
    monkeypatch.delenv("HMAS_ADMIN_URL")
    assert hmas("status")[0] == 0
    monkeypatch.delenv("HMAS_ADMIN_TOKEN")
    (tmp_path / "admin-token").write_text(TOKEN)
    (tmp_path / "admin-token").chmod(0o600)
    assert hmas("status")[0] == 0, "the token's place is read, too"
    found = checks(hmas)
    assert names(found, "FAIL") == {"config"}
    assert {"gateway", "engine gpu-0", "engine gpu-1", "load", "clock"} <= names(found, "OK")


def test_a_wrong_address_is_still_a_mistake(hmas, config, monkeypatch):
    config("", host="5")
    monkeypatch.delenv("HMAS_ADMIN_URL")
    code, _, err = hmas("status")
    assert code == 2
    assert "hmas.yaml:2: gateway.admin_host: got 5 (an integer); allowed: text" in err
    assert "give --admin URL" in err


def test_a_file_that_is_half_written_is_not_needed_beside_admin(hmas, config, monkeypatch, installation, tmp_path):
    config("scheduler: {n_run: 4\n")
    assert hmas("status")[0] == 0
    monkeypatch.delenv("HMAS_ADMIN_TOKEN")
    code, _, err = hmas("status")
    assert code == 2
    assert "not YAML" in err
    assert "give HMAS_ADMIN_TOKEN or HMAS_STATE_DIR" in err
    (tmp_path / "admin-token").write_text(TOKEN)
    (tmp_path / "admin-token").chmod(0o600)
    monkeypatch.setenv("HMAS_STATE_DIR", str(tmp_path))
    assert hmas("status", "--admin", installation.admin)[0] == 0


def test_an_override_that_the_gateway_refuses_is_not_in_force(hmas, config, installation):
    folder = installation.state_dir / "overrides"
    folder.mkdir(exist_ok=True)
    (folder / "night.json").write_text(
        json.dumps({"version": 1, "author": "a", "reason": "r", "expires": None, "engines": {"gpu-9": {"drain": True}}})
    )
    try:
        deadline = time.monotonic() + 10
        while "refused" not in hmas("override", "list")[1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (found,) = [check for check in checks(hmas) if check["name"] == "overrides"]
        assert found["state"] == "WARN"
        assert "night.json: $.engines.gpu-9: no such instance" in found["found"]
    finally:
        (folder / "night.json").unlink()


def test_of_the_only_engine_nobody_is_promised_another_one():
    (found,) = doctor.check_engines(Config(engines=[EngineConfig(name="only", url="http://127.0.0.1:9")]), {})
    assert (found.state, found.do) == ("FAIL", "start it, or correct its address; engines that are up serve meanwhile")


def test_a_hung_engine_makes_no_clock_fault(hmas, config, monkeypatch):
    started, later = SystemClock.now_s, [0.0]
    monkeypatch.setattr(SystemClock, "now_s", lambda self: started(self) + later[0])

    def slow(*_args):
        later[0] = 60.0  # as if engines and bus had let doctor wait
        yield doctor.Check("engine slow", "FAIL", "does not answer")

    monkeypatch.setattr(doctor, "check_engines", slow)
    assert "clock" in names(checks(hmas), "OK")


@pytest.mark.parametrize(("serves", "do"), [(False, "left by an earlier run"), (True, "`hmas up` runs on it")])
def test_a_bus_that_hangs_is_no_leftover_while_a_gateway_serves(tmp_path, monkeypatch, serves, do):
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.05)
    (tmp_path / "bus").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "bus" / "r.sock"))
        (found,) = doctor.check_bus(Config(state_dir=str(tmp_path)), serves=serves)
    assert found.state == "WARN"
    assert found.do.startswith(do)
