"""The plan of `hmas up`: one configuration from file and command line, and the processes it comes to."""

import json
import os
from socket import create_connection, socket
from urllib.parse import urlsplit

import pytest

from hmas.cli.stack import AGENT_STAGE, AGENT_WATCHDOG_S, ENGINE_STAGE, GATEWAY_STAGE, WATCHDOG_S, Choices, plan
from hmas.cli.targets import parse_targets
from hmas.cli.up import reserved_ports
from hmas.controller.config.derived import AGENT_NAMES, running_agents
from hmas.controller.config.loader import load_config
from hmas.controller.core.errors import ConfigError
from hmas.controller.runtime.ports import bound_sockets


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith("HMAS_")]:
        monkeypatch.delenv(name)


def test_the_command_line_stands_above_the_file(tmp_path):
    file = tmp_path / "hmas.yaml"
    file.write_text("gateway: {port: 9000, drain_s: 7}\nengines: [{name: a, url: 'http://h:1'}]\nscheduler: {policy: sjf}\n")
    kept = plan(Choices(config_file=str(file))).config
    assert (kept.gateway.port, [engine.name for engine in kept.engines], kept.agents.enabled) == (9000, ["a"], True)
    choices = Choices(str(file), parse_targets(["sim", "vllm=http://h:2"]), port=9001, admin_port=9002, no_auth=True, no_agents=True)
    changed = plan(choices).config
    assert [engine.name for engine in changed.engines] == ["sim-1", "vllm-1"]
    assert (changed.gateway.port, changed.gateway.admin_port, changed.gateway.no_auth) == (9001, 9002, True)
    assert (changed.agents.enabled, changed.scheduler.policy) == (False, "sjf")


def test_children_read_the_very_configuration_of_the_plan(tmp_path):
    file = tmp_path / "hmas.yaml"
    file.write_text("gateway: {drain_s: 7}\n")
    stack = plan(Choices(str(file), parse_targets(["sim"]), port=0, admin_port=0, no_auth=True))
    for spec in stack.control_specs("unix:///bus.sock"):
        assert spec.argv[-2:] == ["--config", str(file)]
        read = load_config(str(file), spec.env)
        assert read.bus.url == "unix:///bus.sock"
        assert (read.engines, read.gateway, read.agents) == (stack.config.engines, stack.config.gateway, stack.config.agents)


def test_an_agent_that_hangs_is_started_again_within_ten_seconds():
    stack = plan(Choices(targets=parse_targets(["sim"]), port=0, admin_port=0, no_auth=True))
    limits = {spec.name: spec.watchdog_s for spec in [*stack.engine_specs(), *stack.control_specs("unix:///bus.sock")]}
    assert limits == dict.fromkeys(AGENT_NAMES, AGENT_WATCHDOG_S) | dict.fromkeys(("gateway", "sim-1"), WATCHDOG_S)
    assert AGENT_WATCHDOG_S <= 8.0


def test_ports_are_chosen_once():
    stack = plan(Choices(targets=parse_targets(["sim"]), port=0, admin_port=0, no_auth=True))
    gateway = stack.config.gateway
    assert gateway.port > 0
    assert gateway.admin_port > 0
    assert gateway.port != gateway.admin_port
    assert stack.gateway_url == f"http://127.0.0.1:{gateway.port}"
    assert stack.env["HMAS_GATEWAY__PORT"] == str(gateway.port)


def test_nobody_else_gets_the_port_of_an_embedded_engine_which_can_still_listen_there():
    (target,) = parse_targets(["sim"])
    address = ("127.0.0.1", urlsplit(target.config.url).port or 0)
    with reserved_ports([target]):
        with socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        for _ in range(2):
            (engine,) = bound_sockets(*address)
            with engine:
                engine.listen()
                create_connection(address).close()
            with pytest.raises(ConnectionRefusedError):
                create_connection(address)


def test_the_processes_and_their_order():
    stack = plan(Choices(targets=parse_targets(["sim:demo-small@2", "http://h:1"]), no_auth=True))
    (engine,) = stack.engine_specs()
    assert engine.argv[1:6] == ["-m", "hmas", "run", "engine", "--profile"]
    assert "--speed" in engine.argv
    assert engine.stage == ENGINE_STAGE
    specs = stack.control_specs("redis://h")
    assert [spec.name for spec in specs] == [*AGENT_NAMES, "gateway"]
    assert {spec.stage for spec in specs[:-1]} == {AGENT_STAGE}
    gateway = specs[-1]
    assert (gateway.stage, gateway.essential) == (GATEWAY_STAGE, True)
    assert gateway.grace_s > stack.config.gateway.drain_s
    assert GATEWAY_STAGE > AGENT_STAGE > ENGINE_STAGE
    assert [spec.name for spec in plan(Choices(targets=parse_targets(["sim"]), no_agents=True)).control_specs("")] == ["gateway"]


def test_engines_of_the_command_line_are_json_for_the_children():
    stack = plan(Choices(targets=parse_targets(["sim"]), no_auth=True))
    assert json.loads(stack.env["HMAS_ENGINES"])[0]["name"] == "sim-1"


def test_what_does_not_fit_together_is_refused(tmp_path):
    file = tmp_path / "hmas.yaml"
    file.write_text("gateway: {host: 0.0.0.0}\n")
    with pytest.raises(ConfigError, match=r"gateway\.no_auth: got true with host '0\.0\.0\.0'"):
        plan(Choices(str(file), parse_targets(["sim"]), no_auth=True))


def test_only_the_agents_that_are_named_run(tmp_path):
    file = tmp_path / "hmas.yaml"
    file.write_text("agents: {only: 'statera, qos'}\n")
    chosen = plan(Choices(str(file), parse_targets(["sim"]), no_auth=True))
    assert [spec.name for spec in chosen.control_specs("")] == ["qos", "statera", "gateway"]
    over = plan(Choices(str(file), parse_targets(["sim"]), no_auth=True, agents="meta"))
    assert [spec.name for spec in over.control_specs("")] == ["meta", "gateway"]
    assert running_agents(over.config.agents) == ("meta",)
    off = plan(Choices(str(file), parse_targets(["sim"]), no_auth=True, no_agents=True))
    assert running_agents(off.config.agents) == ()
    with pytest.raises(ConfigError, match=r"agents\.only: got 'oracle'; allowed: perception, .* or an empty text for all"):
        plan(Choices(targets=parse_targets(["sim"]), agents="qos,oracle"))
