"""The demo's runs on real processes."""

import os
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest

from hmas.controller.config.loader import load_config
from hmas.controller.runtime.clock import SystemClock
from hmas.demo.calibration import Variant
from hmas.demo.live import live_run
from hmas.demo.settings import DemoSettings, demo_arrivals
from hmas.demo.site import EVERYBODY, DemoBroken, GatewayAddress, gateway_config, make_site, running_engines, running_gateway
from hmas.demo.story import AGENT_PACE
from hmas.loadgen.dataset import load_mixture

SETTINGS = DemoSettings(periods=1, period_s=2.0)


def arrivals(rate=10.0):
    return demo_arrivals(SETTINGS.workload(mean_rps=rate, slo_scale=1.0), *load_mixture())


async def test_every_configuration_can_be_loaded(tmp_path):
    site = make_site(tmp_path, ["aurora", "birch"])
    site.engines["engine-1"] = "http://127.0.0.1:8101"
    address = GatewayAddress("http://127.0.0.1:9001", "http://127.0.0.1:9002", "unix:///tmp/x.sock")
    document = gateway_config(site, Variant(name="hmas", policy="edf", overdue="demote"), address, tmp_path, {"agents": dict(AGENT_PACE)})
    path = tmp_path / "hmas.yaml"
    path.write_bytes(orjson.dumps(document))
    config = load_config(str(path), {})
    assert config.agents.enabled
    assert config.agents.statera_period_s == AGENT_PACE["statera_period_s"]
    assert config.bus.url == "unix:///tmp/x.sock"
    assert set(config.tenants) == {"aurora", "birch"}
    alone = gateway_config(site, Variant(name="x", n_run=16, overdue="shed"), GatewayAddress(address.url, address.admin_url), tmp_path, {})
    path.write_bytes(orjson.dumps(alone))
    config = load_config(str(path), {})
    assert not config.agents.enabled
    assert not config.scheduler.fence
    assert (config.scheduler.policy, config.scheduler.n_run, config.scheduler.overdue) == ("fcfs", 16, "shed")


@pytest.mark.slow
@pytest.mark.long
async def test_runs_leave_nothing_behind_and_lose_nothing(tmp_path):
    work = arrivals()
    site = make_site(tmp_path, sorted({a.tenant for a in work}))
    heard: list[Any] = []
    async with running_engines(site, SETTINGS):
        for variant, agents in ((Variant(name="engine-default"), False), (Variant(name="hmas", policy="edf", overdue="demote"), True)):
            run = await live_run(
                site,
                variant,
                work,
                SETTINGS.span,
                cast=EVERYBODY if agents else None,
                config={"agents": dict(AGENT_PACE)} if agents else {},
                clock=SystemClock(),
                on_progress=heard.append,
            )
            assert run.broken == []
            assert [r.outcome for r in run.results] == ["completed"] * len(work)
            assert [r.output_tokens for r in run.results] == [a.output_tokens for a in work]
            assert run.status["counts"]["ended"]["completed"] == len(work)
            assert {r.tenant for r in run.results} == set(site.keys) & {a.tenant for a in work}
            assert len(run.samples) > 4
            assert bool(run.actions) == agents
            assert bool(run.verdicts) == agents
    assert heard
    assert site.troubles == []


def kill_agent(name, folder):
    """Kills the agent of the run in `folder`, and no other."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] != b"/bin/sh" and name.encode() in words and any(str(folder).encode() in word for word in words):
                os.kill(int(entry.name), signal.SIGKILL)
                return True
    return False


@pytest.mark.slow
@pytest.mark.long
async def test_a_killed_agent_costs_no_request_and_breaks_the_demo(tmp_path):
    work = arrivals()
    site = make_site(tmp_path, sorted({a.tenant for a in work}))
    killed: list[str] = []

    def kill_once(_progress):
        if not killed and kill_agent("statera", tmp_path):
            killed.append("statera")

    async with running_engines(site, SETTINGS):
        run = await live_run(
            site,
            Variant(name="hmas", policy="edf", overdue="demote"),
            work,
            SETTINGS.span,
            cast=EVERYBODY,
            config={},
            clock=SystemClock(),
            on_progress=kill_once,
        )
    assert killed
    assert len(run.broken) == 1
    assert "statera crashed: ended by SIGKILL" in run.broken[0]
    assert [r.outcome for r in run.results] == ["completed"] * len(work)


@pytest.mark.slow
async def test_a_process_that_does_not_come_up_is_named(tmp_path):
    site = make_site(tmp_path, ["aurora"])
    site.engines["engine-1"] = "http://127.0.0.1:9"
    with pytest.raises(DemoBroken, match=r"gateway crashed: ended with status 2.*gateway\.log"):
        async with running_gateway(site, Variant(name="x", policy="no-such-policy"), cast=None, config={}):
            pass
