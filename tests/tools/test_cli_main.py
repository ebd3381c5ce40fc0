"""The command line by itself: help, exit codes, and the commands that need no gateway."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typing_kit import known

from hmas.cli import doctor
from hmas.cli.main import COMMANDS, main
from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import Config

ROOT = Path(__file__).parents[2]
OVERRIDE = {"version": 1, "author": "a", "reason": "r", "expires": None, "policy": {"name": "edf"}}
NOWHERE = "http://127.0.0.1:9"  # the discard port, where nobody listens


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    """A shell without HMAS_ variables."""
    for name in [name for name in os.environ if name.startswith("HMAS_")]:
        monkeypatch.delenv(name)


def hmas(capsys, *arguments):
    """Exit code, stdout, stderr."""
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def in_a_process(*arguments, code="", **env):
    """Runs the command in a process of its own."""
    program = [sys.executable, "-c", code] if code else [sys.executable, "-m", "hmas", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HMAS_")}
    return subprocess.run(program, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT, env={**clean, **env})


def test_help_lists_every_command(capsys):
    code, out, _ = hmas(capsys, "--help")
    assert code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert "Exit codes: 0 done" in out


GROUPS = {
    "policy": ["list", "show", "force", "release"],
    "knobs": ["show", "set", "release"],
    "override": ["validate", "apply", "list", "clear", "schema"],
    "engines": ["list", "drain", "undrain"],
    "config": ["check", "example", "reference"],
    "key": ["new"],
    "run": ["gateway", "agent", "engine"],
}
COMMAND_LINES = [["up"], ["status"], ["events"], ["doctor"], ["views"], ["intent"]] + [
    [group, name] for group, names in GROUPS.items() for name in names
]


@pytest.mark.parametrize("command", COMMAND_LINES, ids=" ".join)
def test_every_command_has_help_with_an_example(capsys, command):
    code, out, _ = hmas(capsys, *command, "--help")
    assert code == 0
    assert "Example" in out
    assert f"hmas {' '.join(command)}" in out


def test_an_example_of_two_lines_can_be_pasted(capsys):
    _, out, _ = hmas(capsys, "plan", "--help")
    assert "--rate 40 \\\n" in out


def test_status_commands_import_nothing_heavy():
    code = (
        "import sys; from hmas.cli.main import main\n"
        f"assert main(['--help']) == 0 and main(['status', '--admin', '{NOWHERE}']) == 3\n"
        "heavy = {'catboost', 'matplotlib', 'numpy', 'aiohttp', 'uvloop', 'redis', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = in_a_process(code=code)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["policy", "show"],
        ["policy", "force", "edf", "--reason", "r"],
        ["knobs", "set", "*", "--n-run", "4", "--reason", "r"],
        ["override", "list"],
        ["override", "clear", "--all"],
        ["intent", "team-a first until six"],
        ["engines", "list"],
        ["events"],
    ],
    ids=" ".join,
)
def test_no_gateway_is_exit_code_3_and_says_what_to_do(capsys, command):
    code, out, err = hmas(capsys, *command, "--admin", NOWHERE)
    assert code == 3
    assert out == ""
    assert f"no gateway listens at {NOWHERE}; start one with `hmas up`" in err


def test_the_address_comes_from_the_option_the_variable_or_the_configuration(capsys, monkeypatch, tmp_path):
    (tmp_path / "hmas.yaml").write_text("gateway: {admin_port: 10}\n")
    monkeypatch.setenv("HMAS_CONFIG", str(tmp_path / "hmas.yaml"))
    assert "127.0.0.1:10;" in hmas(capsys, "status")[2]
    monkeypatch.setenv("HMAS_ADMIN_URL", NOWHERE)
    assert "127.0.0.1:9;" in hmas(capsys, "status")[2]
    assert "127.0.0.1:11;" in hmas(capsys, "status", "--admin", "http://127.0.0.1:11")[2]
    monkeypatch.delenv("HMAS_ADMIN_URL")
    (tmp_path / "hmas.yaml").write_text("gateway: {admin_prot: 10}\n")
    code, _, err = hmas(capsys, "status")
    assert code == 2
    assert "hmas.yaml:1: gateway.admin_prot: unknown key" in err
    code, _, err = hmas(capsys, "status", "--admin", "not a url")
    assert code == 2
    assert "allowed: http://HOST:PORT" in err
    code, _, err = hmas(capsys, "status", "--admin", "http://127.0.0.1:80811")
    assert code == 2
    assert "allowed: http://HOST:PORT with a port from 0 to 65535" in err


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["policy", "force"], "Missing argument 'NAME'"),
        (["policy", "force", "edf"], "Missing option '--reason'"),
        (["policy", "force", "edf", "--reason", "r", "--for", "soon"], "'soon' is no duration; allowed"),
        (["policy", "force", "edf", "--reason", "r", "--parameter", "x"], "'x' is no parameter; allowed"),
        (["knobs", "set", "gpu-0", "--reason", "r"], "give --n-run or --token-budget"),
        (["knobs", "set", "gpu-0", "--n-run", "0", "--reason", "r"], "0 is not in the range 1<=x<=4096"),
        (["override", "clear"], "name one override, or give --all"),
        (["override", "clear", "night", "--all"], "name one override, or give --all"),
        (["run", "agent", "oracle"], "'oracle' is not one of 'perception'"),
        (["up"], "no engine: name one with --engine"),
        (["up", "--engine", "tgi"], "is no engine; allowed: sim"),
        (["up", "--engine", "sim:nosuch"], "profile 'nosuch' is unknown; allowed:"),
        (["status", "--admin", "bogus"], "admin address 'bogus'; allowed: http://HOST:PORT"),
        (["simulate", "--fleet", "1xdemo-small", "--workload", "nosuch:rate=1"], "file, text2sql, tools"),
        (["simulate", "--fleet", "1xdemo-small", "--workload", "poisson:rate=-1"], "rate is '-1'"),
        (["policy", "check", ".x:Y"], "'.x:Y' cannot be loaded"),
        (["router", "check", ".x:Y"], "'.x:Y' cannot be loaded"),
        (["profile", NOWHERE, "--concurrency", "1,²"], "'1,²' is no list of concurrencies"),
        (["tune", "statera", "demo-small", "--ladder", "1,²"], "'1,²' is no list of concurrencies"),
        (["up", "--port", "70000", "--engine", "sim"], "70000 is not in the range"),
        (["events", "--limit", "0"], "not in the range"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_exit_code_2(capsys, command, word):
    code, out, err = hmas(capsys, *command)
    assert (code, out) == (2, "")
    assert word in err


def test_a_configuration_that_cannot_be_used_is_exit_code_2(capsys, tmp_path):
    file = tmp_path / "hmas.toml"
    file.write_text("[gateway]\nport = 1\nhost = 5\n")
    for command in (["run", "gateway"], ["run", "agent", "qos"], ["up", "--engine", "sim"]):
        code, _, err = hmas(capsys, *command, "--config", str(file))
        assert code == 2
        assert f"{file}:3: gateway.host: got 5 (an integer); allowed: text" in err


def test_processes_without_a_bus_say_what_to_do(capsys):
    for command in (["run", "gateway"], ["run", "agent", "qos"]):
        code, _, err = hmas(capsys, *command)
        assert code == 2
        assert "bus.url is empty: name a Redis server there or in HMAS_BUS__URL" in err


def test_config_check(capsys, tmp_path):
    file = tmp_path / "hmas.yaml"
    file.write_text("gateway:\n  no_auth: true\nengines:\n- {name: a, url: 'http://h:1'}\nbus: {url: 'redis://u:secret@h:1'}\n")
    code, out, err = hmas(capsys, "config", "check", str(file))
    assert (code, out, err) == (0, f"{file}: ok, 1 engines, 0 tenants\n", "")
    code, out, _ = hmas(capsys, "config", "check", str(file), "--json")
    document = json.loads(out)
    assert document["ok"]
    assert document["config"]["bus"]["url"] == "redis://h:1"
    assert "secret" not in out

    file.write_text("gateway:\n  port: 0x\n  hots: a\n")
    code, out, err = hmas(capsys, "config", "check", str(file))
    assert (code, out) == (1, "")
    assert f"{file}:2: gateway.port: got '0x' (a text)" in err
    assert f"{file}:3: gateway.hots: unknown key. Did you mean `host`?" in err
    code, out, _ = hmas(capsys, "config", "check", "--json", "--config", str(file))
    assert code == 1
    assert [item["path"] for item in json.loads(out)["mistakes"]] == ["gateway.port", "gateway.hots"]


def test_config_check_gives_advice_on_stderr(capsys):
    code, out, err = hmas(capsys, "config", "check")
    assert code == 0
    assert out.startswith("defaults and environment: ok")
    assert "note: engines: none is configured" in err


def test_config_example_and_reference(capsys, tmp_path):
    code, out, _ = hmas(capsys, "config", "example")
    assert code == 0
    (tmp_path / "x.yaml").write_text(out)
    assert load_config(str(tmp_path / "x.yaml"), {}).engines
    code, out, _ = hmas(capsys, "config", "reference")
    assert out == (ROOT / "docs" / "configuration.md").read_text()


def test_what_the_compose_file_reads_is_no_unknown_setting(capsys, monkeypatch):
    monkeypatch.setenv("HMAS_EXTRAS", "mqtt")
    monkeypatch.setenv("HMAS_COMPILE", "1")
    assert hmas(capsys, "config", "check")[0] == 0


def test_key_new_prints_a_snippet_that_loads(capsys, tmp_path):
    code, out, _ = hmas(capsys, "key", "new", "--tenant", "alice")
    assert code == 0
    secret = out.splitlines()[0].split()[1]
    snippet = out.split("\n\n", 2)[2]
    (tmp_path / "x.yaml").write_text(snippet)
    tenant = load_config(str(tmp_path / "x.yaml"), {}).tenants["alice"]
    assert tenant.key_sha256 == [hashlib.sha256(secret.encode()).hexdigest()]
    assert len(secret) > 40
    assert hmas(capsys, "key", "new")[1] != out
    for name in ("", "a b", "a:"):
        code, out, err = hmas(capsys, "key", "new", "--tenant", name)
        assert (code, out) == (2, "")
        assert f"--tenant is {name!r}; allowed: letters" in err


def test_key_new_for_operators(capsys):
    _, out, _ = hmas(capsys, "key", "new", "--admin")
    assert "admin_token_sha256" in yaml.safe_load(out.split("\n\n", 2)[2])["gateway"]
    _, out, _ = hmas(capsys, "key", "new", "--json")
    document = json.loads(out)
    assert hashlib.sha256(document["key"].encode()).hexdigest() == document["sha256"]


def test_override_validate_here(capsys, tmp_path):
    file = tmp_path / "night.json"
    file.write_text(json.dumps(OVERRIDE))
    assert hmas(capsys, "override", "validate", str(file), "--here")[:2] == (0, "night: ok, holds policy\n")
    code, out, _ = hmas(capsys, "override", "validate", str(file), "--here", "--json")
    assert json.loads(out)["settings"] == {"policy": {"name": "edf", "parameters": {}}}
    code, _, err = hmas(capsys, "override", "validate", str(file), "--admin", NOWHERE)
    assert code == 3
    assert "night: well formed, but no gateway listens" in err
    assert "--here checks the file alone" in err

    file.write_text(json.dumps(OVERRIDE)[:-4])
    code, out, err = hmas(capsys, "override", "validate", str(file), "--here")
    assert (code, out) == (1, "")
    assert "night: not JSON, or only half written: line 1" in err
    code, out, _ = hmas(capsys, "override", "validate", str(file), "--here", "--json")
    assert code == 1
    assert json.loads(out)["valid"] is False
    code, _, err = hmas(capsys, "override", "validate", str(tmp_path / "none.json"), "--here")
    assert code == 1
    assert "none.json: cannot be read: No such file" in err


def test_override_schema_is_the_published_one(capsys):
    _, out, _ = hmas(capsys, "override", "schema")
    assert out == (ROOT / "docs" / "override.schema.json").read_text()


@pytest.mark.parametrize("command", [("explain",), ("policy", "force", "edf", "--reason")])
def test_a_byte_that_is_not_utf8_is_refused_by_name(capsys, command):
    code, out, err = hmas(capsys, *command, "\udcff", "--admin", NOWHERE)
    assert (code, out) == (2, "")
    assert err == "hmas: the command line has a byte that is not UTF-8; allowed: text in UTF-8\n"


def test_version_and_module_entry():
    result = in_a_process("--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: hmas [OPTIONS] COMMAND")


def test_a_reader_that_leaves_early_is_no_error():
    code = "import sys; from hmas.cli.main import main; sys.exit(main(['config', 'reference']))"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HMAS_")}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=clean) as process:
        known(process.stdout).close()
        assert known(process.stderr).read() == b""


def test_doctor_tells_of_a_folder_that_this_user_may_not_look_into(monkeypatch, tmp_path):
    real = os.stat

    def stat(path, **options):
        if not isinstance(path, int) and tmp_path in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    # Both as for another user than root, whom nothing stops.
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda *_: False)
    config = Config(state_dir=str(tmp_path / "state"))
    (found,) = doctor.check_state_dir(config)
    assert (found.state, found.found) == ("FAIL", f"{tmp_path / 'state'} cannot be written")
    (found,) = doctor.check_bus(config)
    assert found.name == "bus"
