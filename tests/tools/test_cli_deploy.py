"""Unit files and container files: what they start exists, what they set is a setting, and systemd takes the units."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from typing_kit import known

from hmas.cli.main import cli
from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.config.environment import OTHER_NAMES, names
from hmas.controller.config.reload import LIVE
from hmas.controller.config.schema import Config

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.yaml").read_text())
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def block_of(begins):
    """The block of code in docs/operations.md that begins so."""
    (found,) = [block for block in re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if block.startswith(begins)]
    return found


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


def test_the_page_makes_a_unit_of_a_second_perception(tmp_path):
    made = tmp_path / "hmas-perception@.service"
    command = block_of("sed ").partition("\nsystemctl")[0].replace(f"/etc/systemd/system/{made.name}", str(made))
    subprocess.run(command, shell=True, check=True, cwd=ROOT)
    text, template = made.read_text(), (ROOT / "systemd" / "hmas-agent@.service").read_text()
    wanted = {"Description=H-MAS perception %i", "ExecStart=/opt/hmas/bin/hmas run agent perception", "Environment=HMAS_INSTANCE=%i"}
    assert set(text.splitlines()) - set(template.splitlines()) == wanted
    assert settings_of(made).index("HMAS_INSTANCE") == 2


def test_the_page_has_the_units_limits():
    agent, bus, gateway = (dict(re.findall(r"^(\w+Max)=(\d+)", unit.read_text(), re.MULTILINE)) for unit in UNITS)
    memory = [f"{unit['MemoryMax']} GB" for unit in (gateway, agent, bus)]
    assert "`MemoryMax`: {} for the gateway, {} for an agent, {} for the bus.".format(*memory) in PAGE
    assert f"`TasksMax`: {gateway['TasksMax']} and {agent['TasksMax']}." in PAGE


def test_the_proxies_of_the_page_let_pass_what_the_gateway_takes():
    gateway = Config().gateway
    nginx, caddy = block_of("server {"), block_of("llm.example.com {")
    assert int(known(re.search(r"client_max_body_size (\d+)m;", nginx))[1]) << 20 == gateway.max_body_bytes
    assert int(known(re.search(r"max_size (\d+)MiB", caddy))[1]) << 20 == gateway.max_body_bytes
    assert int(known(re.search(r"proxy_read_timeout (\d+)s;", nginx))[1]) > gateway.request_timeout_s
    assert all(f"127.0.0.1:{gateway.port}" in proxy for proxy in (nginx, caddy))


def test_the_page_names_what_a_reload_applies():
    text = known(re.search(r"Without a restart it applies: (.*?) An event", PAGE, re.DOTALL))[1]
    assert set(LIVE) | {"scheduler.routing_weights"} == set(re.findall(r"`([a-z_.]+)`", text))


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


def test_the_compose_file_of_the_page_fits():
    own = yaml.safe_load(block_of("x-own"))["services"]
    assert set(own) == {name for name, service in COMPOSE["services"].items() if service.get("image") == "h-mas"} - {"sim"}
    for service in own.values():
        assert set(service["environment"]) <= OTHER_NAMES | {"GPU1_KEY"}
        folder = Path(service["environment"]["HMAS_CONFIG"]).parent
        assert service["volumes"] == [f"{folder}:{folder}:ro"]


def test_the_image_has_the_extras_that_are_named():
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert re.findall(r"^ARG (\w+)=", text, re.MULTILINE) == COMPOSE["services"]["gateway"]["build"]["args"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = known(re.search(r"HMAS_EXTRAS=(\S+) docker compose", PAGE))[1].split(",")
    pinned = subprocess.run(
        known(re.search(r"^ *(sed -n .*) > /constraints", text, re.MULTILINE))[1],
        shell=True,
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    ).stdout.splitlines()
    for extra in named:
        for package in extras[extra]:
            assert any(line.startswith(re.split("[<>=]", package)[0] + "==") for line in pinned), package


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
