"""Unit files and container files: what they start exists, what they set is a setting, and systemd takes the units."""

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import yaml
from typing_kit import known

from hmas.cli.main import cli
from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.config.environment import OTHER_NAMES, names
from hmas.controller.config.schema import Config

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.yaml").read_text())


def assert_parses(arguments):
    """The command line names a command of hmas with options that it has; nothing is run."""
    command: click.Command = cli
    rest = list(arguments)
    with click.Context(cli, info_name="hmas") as ctx:
        while isinstance(command, click.Group):
            command = known(command.get_command(ctx, rest.pop(0)))
        command.make_context(command.name, rest, parent=ctx)


def settings_of(unit):
    """`Environment=` of a unit file."""
    return re.findall(r"^Environment=(\w+)=", unit.read_text(), re.MULTILINE)


@pytest.mark.parametrize("unit", [unit for unit in UNITS if "bus" not in unit.name], ids=lambda unit: unit.name)
def test_what_a_unit_starts_and_sets_exists(unit):
    text = unit.read_text()
    arguments = known(re.search(r"^ExecStart=/opt/hmas/bin/hmas (.*)$", text, re.MULTILINE))[1]
    for name in AGENT_NAMES if "%i" in arguments else ["-"]:
        assert_parses(arguments.replace("%i", name).split())
    assert set(settings_of(unit)) <= set(names()) | OTHER_NAMES
    assert "Type=notify" in text
    assert "RestartPreventExitStatus=2" in text


def test_the_socket_unit_has_the_ports_of_the_configuration():
    gateway = Config().gateway
    listens = re.findall(r"^ListenStream=(.*)$", (ROOT / "systemd" / "hmas-gateway.socket").read_text(), re.MULTILINE)
    assert listens == [f"{gateway.host}:{gateway.port}", f"{gateway.admin_host}:{gateway.admin_port}"]


def test_the_target_wants_every_agent():
    wanted = re.findall(r"hmas-agent@(\w+)\.service", (ROOT / "systemd" / "hmas.target").read_text())
    assert sorted(wanted) == sorted(AGENT_NAMES)


def test_a_gateway_may_drain_before_it_is_killed():
    text = (ROOT / "systemd" / "hmas-gateway.service").read_text()
    assert int(known(re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE))[1]) > Config().gateway.drain_s + 5


@pytest.fixture
def units(tmp_path):
    """The units with programs that are there, since systemd looks."""
    for unit in (ROOT / "systemd").iterdir():
        (tmp_path / unit.name).write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE))
    (tmp_path / "hmas-agent@.service").rename(tmp_path / "hmas-agent@qos.service")
    return sorted(str(path) for path in tmp_path.iterdir())


needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@needs_systemd
def test_systemd_takes_the_units(units):
    result = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=one", *units], check=False, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@needs_systemd
def test_the_units_are_hardened(units):
    services = [unit for unit in units if unit.endswith(".service")]
    result = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", *services],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout[-2000:]


def test_what_the_containers_start_and_set_exists():
    own = {name: service for name, service in COMPOSE["services"].items() if service.get("image") == "h-mas"}
    for name, service in own.items():
        assert_parses(service["command"])
        assert set(service["environment"]) <= set(names()), name
    agents = [service for service in own.values() if service["command"][:2] == ["run", "agent"]]
    assert {service["command"][-1] for service in agents} == set(AGENT_NAMES)
    (state,) = [volume for volume in own["gateway"]["volumes"] if volume.endswith(":/var/lib/hmas")]
    assert all(state in service.get("volumes", []) for service in agents), "agents load the models that `hmas models use` has chosen there"
    grace_s = int(own["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > Config().gateway.drain_s + 5


def test_the_image_copies_what_is_there():
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    ignored = (ROOT / "deploy" / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    sources = [source for line in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE) for source in line.split()[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, f"the build would not see {source}"
    links = {str(path.resolve().relative_to(ROOT.resolve())) for path in (ROOT / "hmas").iterdir() if path.is_symlink()}
    assert links
    assert links <= set(sources), "what a link of hmas/ leads to is a part of the package"
