"""`hmas up` as a user runs it: real processes, a real Valkey, real HTTP."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typing_kit import known

from hmas.controller.bus.embedded import LOG_MOST, find_server
from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.runtime.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]


def environment(state_dir):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HMAS_")}
    return {**clean, "HMAS_STATE_DIR": str(state_dir), "PYTHONPATH": str(ROOT)}


class Up:
    """A running `hmas up`."""

    def __init__(self, state_dir, *arguments, **env):
        self.env = {**environment(state_dir), **env}
        self.log = Path(state_dir) / "up.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hmas", "up", "--json", "--port", "0", "--admin-port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.env,
                cwd=state_dir,
            )
        self.doc: dict[str, Any] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
            self.process.kill()
            self.process.wait()
        known(self.process.stdout).close()

    def announced(self):
        """What it printed once everything was ready."""
        text = b""
        for line in known(self.process.stdout):
            text += line
            if line == b"}\n":
                self.doc = json.loads(text)
                return self.doc
        raise AssertionError(self.log.read_text()[-3000:])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def hmas(self, *arguments):
        """Exit code and stdout of an operators' command."""
        env = {**self.env, "HMAS_ADMIN_URL": self.doc["admin"]}
        result = subprocess.run(
            [sys.executable, "-m", "hmas", *arguments], check=False, capture_output=True, text=True, env=env, cwd=ROOT, timeout=60
        )
        return result.returncode, result.stdout + result.stderr

    def family(self):
        """Every process that descends from it: process id by command line."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if fields[0] != "Z":
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
        found, open_ = {}, [self.process.pid]
        while open_:
            for child in children.get(open_.pop(), []):
                with contextlib.suppress(OSError):
                    found[Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip()] = child
                    open_.append(child)
        return found

    def child(self, words):
        return next(pid for line, pid in self.family().items() if words in line)


def until(condition, timeout_s=60.0):
    """Polls until the condition gives something."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
    return found


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""


def chat(doc):
    """Status and answer of a chat completion, as curl would ask for it."""
    body = {"model": doc["engines"][0]["models"][0], "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}
    request = urllib.request.Request(
        doc["gateway"] + "/v1/chat/completions", data=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.status, json.loads(response.read())


def test_sighup_makes_the_gateway_read_its_configuration_again(tmp_path):
    config = tmp_path / "hmas.yaml"
    config.write_text("scheduler: {policy: fcfs}")
    with Up(tmp_path, "--engine", "sim", "--no-auth", "--no-agents", "--config", str(config)) as up:
        up.announced()
        gateway = up.child("run gateway")
        config.write_text("scheduler: {policy: sjf}")
        up.process.send_signal(signal.SIGHUP)
        until(lambda: json.loads(up.hmas("status", "--json")[1])["policy"]["name"] == "sjf")
        assert up.child("run gateway") == gateway, "it was not started again"
        config.write_text("scheduler: {n_rum: 4}\nbus: {key_prefix: other}")
        code, out = up.hmas("events", "--all", "--config", str(config))
        assert (code, out) == (0, ""), "it reads what tells the bus and its streams alone, and nobody writes to these"
        config.write_text("scheduler: {n_rum: 4}")
        assert "process.started gateway" in up.hmas("events", "--all", "--config", str(config))[1]


def test_sighup_starts_the_agents_again_that_a_change_concerns(tmp_path):
    config = tmp_path / "hmas.yaml"
    config.write_text("scheduler: {policy: fcfs}")
    with Up(tmp_path, "--engine", "sim", "--no-auth", "--agents", "qos,meta", "--config", str(config)) as up:
        up.announced()
        before = {name: up.child(f"run agent {name}") for name in ("qos", "meta")}
        config.write_text("scheduler: {policy: fcfs}\ntenants: {free: {weight: 2}}")
        up.process.send_signal(signal.SIGHUP)
        until(lambda: "taken: tenants.free" in up.hmas("events", "--kind", "config")[1])
        assert {name: up.child(f"run agent {name}") for name in before} == before, "they do not read tenants"

        config.write_text("scheduler: {policy: sjf}")
        up.process.send_signal(signal.SIGHUP)
        until(lambda: not set(before.values()) & set(up.family().values()))
        policy = until(lambda: (found := json.loads(up.hmas("status", "--json")[1])["policy"])["source"] == "meta" and found)
        assert policy["name"] == "sjf", "meta goes by what is configured now"
        assert "crashed" not in up.hmas("events", "--all")[1]


def gone(pids):
    return [
        pid for pid in pids if Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    ]


def test_from_start_to_stop(tmp_path):
    with Up(tmp_path, "--engine", "sim:demo-small@4", "--engine", "sim", "--no-auth") as up:
        doc = up.announced()
        assert [engine["name"] for engine in doc["engines"]] == ["sim-1", "sim-2"]
        assert doc["agents"] == list(AGENT_NAMES)
        assert get(doc["gateway"] + "/ready")[0] == 200
        status, answer = chat(doc)
        assert status == 200
        assert answer["choices"][0]["message"]["content"]

        code, out = up.hmas("status", "--json")
        assert code == 0
        state = json.loads(out)
        assert state["counts"]["ended"]["completed"] == 1
        assert state["bus"]["connected"]
        code, out = up.hmas("policy", "force", "sjf", "--for", "10m", "--reason", "smoke")
        assert code == 0, out
        assert json.loads(up.hmas("status", "--json")[1])["policy"]["name"] == "sjf"

        # A killed agent and a killed gateway come back, and what operators hold is still held.
        old = up.child("run agent qos")
        os.kill(old, signal.SIGKILL)
        until(lambda: any("agent qos" in line and pid != old for line, pid in up.family().items()))
        os.kill(up.child("run gateway"), signal.SIGKILL)
        until(lambda: get(doc["gateway"] + "/ready")[0] == 200)
        assert chat(doc)[0] == 200
        assert json.loads(up.hmas("status", "--json")[1])["policy"]["name"] == "sjf"
        events = up.hmas("events", "--all", "--limit", "500")[1]
        assert "supervisor: process.crashed gateway" in events
        assert "supervisor: process.crashed qos" in events

        family = up.family()
        assert len(family) >= 2 + len(AGENT_NAMES) + 1 + 1
        assert up.stop() == 0
        assert gone(family.values()) == []


@pytest.mark.long
def test_a_stopped_qos_is_named_and_started_again(tmp_path):
    """The agents that wait for its views are named as waiting, and a healthy start has nothing to warn of."""

    def doctor():
        return {check["name"]: check for check in json.loads(up.hmas("doctor", "--json")[1])["checks"]}

    with Up(tmp_path, "--engine", "sim", "--no-auth") as up:
        up.announced()
        until(lambda: doctor()["agent qos"]["found"].startswith("last answer: 0"))
        assert {name: check["found"] for name, check in doctor().items() if check["state"] != "OK"} == {}
        assert " WARNING gateway " not in up.log.read_text(), "a healthy start is no reason for a warning"
        old = up.child("run agent qos")
        os.kill(old, signal.SIGSTOP)
        stopped_s = time.monotonic()
        found = until(lambda: checks if (checks := doctor())["agent qos"]["state"] == "FAIL" else None, 20.0)
        assert "may be 3 s" in found["agent qos"]["found"]
        assert {found[f"agent {name}"]["state"] for name in ("meta", "statera")} == {"WARN"}
        assert "it waits for qos" in found["agent meta"]["found"]
        assert not found["agent meta"]["do"], "what to do stands beside the agent that it waits for"
        until(lambda: any("run agent qos" in line and pid != old for line, pid in up.family().items()), 20.0)
        assert time.monotonic() - stopped_s < 13.0
        until(lambda: doctor()["agent meta"]["state"] == "OK", 30.0)
        assert up.stop() == 0


def test_a_killed_up_leaves_nothing_behind(tmp_path):
    with Up(tmp_path, "--engine", "sim", "--no-auth", "--no-agents") as up:
        up.announced()
        family = list(up.family().values())
        assert len(family) == 3
        up.process.kill()
        until(lambda: not gone(family), 45.0)


def test_the_embedded_bus_comes_back(tmp_path):
    with Up(tmp_path, "--engine", "sim", "--no-auth", "--no-agents") as up:
        doc = up.announced()
        old = up.child("valkey-server")
        log = next(tmp_path.rglob("server.log"))
        log.write_bytes(bytes(LOG_MOST + 1))
        os.kill(old, signal.SIGKILL)
        until(lambda: any("valkey-server" in line and pid != old for line, pid in up.family().items()))
        assert chat(doc)[0] == 200
        until(lambda: json.loads(up.hmas("status", "--json")[1])["bus"]["connected"])
        assert log.stat().st_size < LOG_MOST
        assert up.stop() == 0


def test_a_bus_that_does_not_answer_keeps_no_other_process_from_being_watched(tmp_path):
    hangs, binary = tmp_path / "hangs", tmp_path / "bin" / "valkey-server"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\n[ "$1" != --version ] && [ -e {hangs} ] && exec sleep 60\nexec {find_server().path} "$@"\n')
    binary.chmod(0o755)
    path = f"{binary.parent}:{os.environ['PATH']}"
    with Up(tmp_path, "--engine", "sim", "--no-auth", "--no-agents", PATH=path) as up:
        up.announced()
        hangs.touch()
        os.kill(up.child("valkey-server"), signal.SIGKILL)
        until(lambda: "sleep 60" in up.family())
        os.kill(up.child("run gateway"), signal.SIGKILL)
        until(lambda: "gateway crashed" in up.log.read_text(), 3.0)
        assert "sleep 60" in up.family(), "the bus is still waited for"
        assert up.stop() == 0
        assert "sleep 60" not in up.family()


def test_before_an_engine_that_is_not_there(tmp_path):
    with Up(tmp_path, "--engine", f"vllm=http://127.0.0.1:{free_port()}", "--no-auth", "--no-agents") as up:
        doc = up.announced()
        assert doc["engines"][0]["healthy"] is False
        assert get(doc["gateway"] + "/ready")[0] == 503
        code, out = up.hmas("status")
        assert code == 1
        assert "NOT READY: no healthy engine" in out
        code, out = up.hmas("doctor")
        assert code == 1
        assert "FAIL  engine vllm-1" in out
        assert up.stop() == 0


def test_a_stop_while_starting(tmp_path):
    with Up(tmp_path, "--engine", "sim", "--no-auth") as up:
        until(lambda: "started" in up.log.read_text())
        family = list(up.family().values())
        assert up.stop() == 0
        assert gone(family) == []


def test_keys_are_asked_for_without_no_auth(tmp_path):
    with Up(tmp_path, "--engine", "sim", "--no-agents") as up:
        doc = up.announced()
        with pytest.raises(urllib.error.HTTPError) as caught:
            chat(doc)
        with caught.value as error:
            assert error.code == 401
        assert "no tenant has a key" in up.log.read_text()


def test_a_taken_port_is_said_at_once(tmp_path):
    with Up(tmp_path, "--engine", "sim", "--no-auth", "--no-agents") as up:
        port = up.announced()["gateway"].rsplit(":", 1)[1]
        result = subprocess.run(
            [sys.executable, "-m", "hmas", "up", "--engine", "sim", "--no-auth", "--port", port],
            check=False,
            capture_output=True,
            text=True,
            env=environment(tmp_path),
            cwd=ROOT,
            timeout=30,
        )
        assert result.returncode == 1
        assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in result.stderr


def test_a_single_gateway_under_a_service_manager(tmp_path):
    """Readiness, watchdog beats and the stop message over a real notify socket."""

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        env = environment(tmp_path) | {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "30000000",
            "HMAS_AGENTS__ENABLED": "false",
            "HMAS_GATEWAY__PORT": "0",
            "HMAS_GATEWAY__ADMIN_PORT": "0",
            "HMAS_GATEWAY__NO_AUTH": "true",
        }
        with subprocess.Popen([sys.executable, "-m", "hmas", "run", "gateway"], env=env, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            first = manager.recv(4096)
            assert first.startswith(b"READY=1\nSTATUS=serving at http://127.0.0.1:")
            assert {manager.recv(4096), manager.recv(4096)} == {b"WATCHDOG=1"}
            process.send_signal(signal.SIGTERM)
            while (message := manager.recv(4096)) == b"WATCHDOG=1":
                pass
            assert message == b"STOPPING=1"
            assert process.wait(30) == 0
