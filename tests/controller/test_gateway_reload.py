"""A configuration that is read again: what is taken live, what is said to take a restart, and that a wrong one changes nothing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_kit import MODEL, eventually, gateway_config, key_hash, running
from test_gateway_membership import watched

from hmas.cli import reloads
from hmas.cli.reloads import Reloads
from hmas.controller.admin.client import AdminClient
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.controller.config.reload import differences, taken
from hmas.controller.config.schema import Config, SchedulerConfig
from hmas.controller.config.section import GatewayConfig, TenantConfig
from hmas.controller.core.errors import AdminError, ConfigError
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.runtime.ports import free_port

ROOT = Path(__file__).parents[2]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def ask() -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def test_every_setting_that_is_different_is_named_once():
    before = Config()
    after = Config(
        state_dir="/elsewhere",
        tenants={"a": TenantConfig(weight=2.0)},
        gateway=GatewayConfig(port=1, drain_s=1.0),
        scheduler=SchedulerConfig(policy="fcfs", queue_limit=5),
    )
    assert differences(before, before) == []
    assert [(one.setting, one.live) for one in differences(before, after)] == [
        ("state_dir", False),
        ("gateway.port", False),
        ("gateway.drain_s", False),
        ("tenants.a", True),
        ("scheduler.policy", True),
        ("scheduler.queue_limit", False),
    ]


def test_what_is_taken_is_what_is_said_to_be():
    before = Config()
    after = Config(
        engines_file="/run/engines.json",
        tenants={"a": TenantConfig(weight=2.0)},
        scheduler=SchedulerConfig(policy="fcfs", n_run=3, tpot_guard=0.25, queue_limit=5),
        agents=msgspec.structs.replace(before.agents, stale_after_s=3.0, nice=1),
        logging=msgspec.structs.replace(before.logging, level="debug"),
    )
    left = {one.setting for one in differences(taken(before, after), after)}
    # The gateway judges by it how old an answer may be, from its start on; `nice` is read by agents alone, which start again.
    assert left == {"scheduler.queue_limit", "agents.stale_after_s"}
    assert all(one.live for one in differences(before, taken(before, after)))


async def test_tenants_keys_and_limits_are_taken_while_it_serves(tmp_path: Path):
    old = {"acme": TenantConfig(key_sha256=[key_hash("sk-old")], weight=1.0)}
    new = {"acme": TenantConfig(key_sha256=[key_hash("sk-new")], weight=3.0, requests_per_minute=1)}
    async with running(tmp_path, tenants=old, gateway=gateway_config(no_auth=False)) as rig:
        gateway = rig.gateway
        assert (await rig.post(ask(), headers=bearer("sk-old"))).status == 200
        assert (await rig.post(ask(), headers=bearer("sk-new"))).status == 401
        gateway.reload(msgspec.structs.replace(gateway.config, tenants=new, state_dir="/elsewhere"))
        assert (await rig.post(ask(), headers=bearer("sk-old"))).status == 401
        assert (await rig.post(ask(), headers=bearer("sk-new"))).status == 200
        assert (await rig.post(ask(), headers=bearer("sk-new"))).status == 429
        assert gateway.control.weight_of("acme") == 3.0
        (event,) = rig.events("config")
        assert (event["after"], event["reason"], event["severity"]) == ("taken: tenants.acme", "takes a restart: state_dir", "warning")
        (weight,) = rig.events("tenant.weight")
        assert (weight["before"], weight["after"], weight["source"]) == ("1", "3", "configured")
        assert gateway.config.state_dir != "/elsewhere"
        assert rig.balanced()


async def test_what_operators_hold_goes_before_a_configuration_that_was_read_again(tmp_path: Path):
    async with running(tmp_path) as rig:
        gateway = rig.gateway
        await rig.admin("POST", "/admin/policy", {"policy": "wfq"})
        scheduler = msgspec.structs.replace(gateway.config.scheduler, policy="sjf", n_run=2)
        gateway.reload(msgspec.structs.replace(gateway.config, scheduler=scheduler))
        assert gateway.scheduler.policy == "wfq"
        assert gateway.control.directives.instances["sim-1"].controls.n_run == 2
        await rig.admin("DELETE", "/admin/policy")
        await eventually(lambda: gateway.scheduler.policy == "sjf")


async def test_an_engine_that_leaves_stays_closed_when_an_operator_lifts_its_drain(tmp_path: Path):
    # The next tick would close it again.
    async with running(tmp_path, engines=2, scheduler=SchedulerConfig(policy="fcfs", tick_s=3600.0)) as rig:
        gateway = rig.gateway
        assert (await rig.admin("POST", "/admin/engines/sim-1/drain")).status == 200
        gateway.reload(msgspec.structs.replace(gateway.config, engines=gateway.config.engines[1:]))
        assert (await rig.admin("POST", "/admin/engines/sim-1/undrain")).json["released"]
        assert [instance.draining for instance in gateway.fleet.instances.values()] == [True, False]
        answers = await asyncio.gather(*(rig.post(ask()) for _ in range(4)))
        assert {(answer.status, answer.headers["x-hmas-instance"]) for answer in answers} == {(200, "sim-2")}


async def test_a_configuration_is_read_beside_the_loop_and_one_at_a_time(tmp_path: Path):
    async with running(tmp_path) as rig:
        config, readers, may_end = rig.gateway.config, [], threading.Event()

        def read() -> Config:
            readers.append(threading.current_thread())
            assert may_end.wait(10)
            return config

        follows = Reloads(config, read, SystemClock())
        follows.serves(rig.gateway)
        async with watched(follows):
            follows.read_again()
            await eventually(lambda: len(readers) == 1)
            for _ in range(3):
                follows.read_again()
            assert (await rig.post(ask())).status == 200
            assert (len(readers), rig.events("config")) == (1, [])
            may_end.set()
            await eventually(lambda: len(rig.events("config")) == 2)
        assert len(readers) == 2, "once for those that asked meanwhile"
        assert threading.main_thread() not in readers


def wait_for(condition, what: str) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


class Served:
    """A process `hmas run gateway` with a configuration file that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.port, self.admin_port, self.folder, self.file = free_port(), free_port(), folder, folder / "hmas.yaml"
        self.admin = AdminClient(f"http://127.0.0.1:{self.admin_port}", token_file=folder / ADMIN_TOKEN_FILE)

    def write(self, **sections: object) -> None:
        gateway = {"port": self.port, "admin_port": self.admin_port, "no_auth": True}
        engines = [{"name": "gpu-0", "url": "http://127.0.0.1:9"}]
        document = {"state_dir": str(self.folder), "gateway": gateway, "engines": engines, "agents": {"enabled": False}}
        self.file.write_text(json.dumps(document | sections))

    @contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HMAS_")} | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, "-m", "hmas", "run", "gateway", "--config", str(self.file)], env=env, cwd=self.folder)
        try:
            wait_for(lambda: self.status() is not None, "the gateway serves")
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)

    def status(self) -> dict[str, Any] | None:
        try:
            return self.admin.status()
        except AdminError:
            return None

    @property
    def policy(self) -> str:
        return str(self.admin.status()["policy"]["name"])

    @property
    def instances(self) -> list[str]:
        return [item["name"] for item in self.admin.status()["instances"]]

    def told(self) -> list[str]:
        return [event["after"] for event in self.admin.events(100) if event["kind"] == "config"]


@pytest.mark.slow
def test_sighup_reads_the_file_again_and_a_wrong_one_changes_nothing(tmp_path: Path):
    served = Served(tmp_path)
    served.write(scheduler={"policy": "fcfs"})
    with served.process() as process:
        assert served.policy == "fcfs"
        served.write(scheduler={"policy": "sjf", "queue_limit": 77})
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: served.policy == "sjf", "the new policy is in force")
        served.file.write_text("scheduler: {policy: [}")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(served.told()) == 2, "the wrong file is told")
        assert served.told() == ["taken: scheduler.policy", "refused"]
        assert served.policy == "sjf"
        assert process.poll() is None


@pytest.mark.slow
def test_a_file_of_engines_is_read_again_when_it_changes(tmp_path: Path):
    served, found = Served(tmp_path), tmp_path / "engines.json"

    def find(*names: str) -> None:
        engines = [{"name": name, "url": f"http://127.0.0.1:{10 + number}"} for number, name in enumerate(names)]
        (tmp_path / "new").write_text(json.dumps({"engines": engines}))
        (tmp_path / "new").replace(found)

    find("gpu-1")
    served.write(engines_file=str(found))
    with served.process():
        assert served.instances == ["gpu-0", "gpu-1"]
        find("gpu-1", "gpu-2")
        wait_for(lambda: served.instances == ["gpu-0", "gpu-1", "gpu-2"], "the new engine is there")
        found.write_text("not a list")
        wait_for(lambda: served.told()[-1] == "refused", "the wrong file is told")
        found.unlink()
        find("gpu-2")
        wait_for(lambda: served.instances == ["gpu-0", "gpu-2"], "the other engine has left")


async def test_a_refused_file_of_engines_is_read_again_once_another_file_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reloads, "WATCH_S", 0.01)
    monkeypatch.setattr(reloads, "RETRY_LOOKS", 2)
    (tmp_path / "engines.json").write_text("[]")
    async with running(tmp_path) as rig:
        config = msgspec.structs.replace(rig.gateway.config, engines_file=str(tmp_path / "engines.json"))
        reads, is_mended = [], threading.Event()

        def read() -> Config:
            reads.append(is_mended.is_set())
            if not is_mended.is_set() and len(reads) > 1:
                raise ConfigError("hmas.yaml: gateway.port: wrong")
            return config

        follows = Reloads(config, read, SystemClock())
        follows.serves(rig.gateway)
        async with watched(follows):
            await eventually(lambda: len(reads) == 1)
            (tmp_path / "engines.json").write_text('{"engines": []}')
            await eventually(lambda: len(reads) > 3)
            assert [event["after"] for event in rig.events("config")] == ["refused"], "the same refusal is told once"
            is_mended.set()
            await eventually(lambda: reads[-1])


@pytest.mark.slow
def test_engines_are_found_by_name(tmp_path: Path):
    served = Served(tmp_path)
    known = {"name": "local", "url": "http://127.0.0.1:11"}
    served.write(engines_dns=[known | {"every_s": 0.5}])
    with served.process() as process:
        assert served.instances == ["gpu-0", "local-127.0.0.1-11"]
        served.write(engines_dns=[known, {"name": "new", "url": "http://127.0.0.1:12"}, {"name": "none", "url": "http://none.invalid"}])
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: served.instances == ["gpu-0", "local-127.0.0.1-11", "new-127.0.0.1-12"], "the second name's engine is there")
        wait_for(lambda: any(event["kind"] == "engine.discovery" for event in served.admin.events(100)), "the third has no answer")
        assert "engines_dns" in served.told()[0]
        served.write()
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: served.instances == ["gpu-0"], "without their names they leave")
