"""A broker that is gone: the operators' pages say since when, why and what was dropped, and nothing else takes notice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import chat, eventually, running
from mqtt_kit import MISSING, Broker, lasting

from hmas.cli.doctor import Check, check_gateway
from hmas.cli.status import page
from hmas.controller.config.schema import Config

pytestmark = [pytest.mark.mqtt, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")]
QUEUE_MOST = 5
RETRY_MOST_S = 30.0


def examined(status: dict[str, Any]) -> Check:
    (found,) = (check for check in check_gateway(Config(), status, "") if check.name == "mqtt")
    return found


def line(status: dict[str, Any]) -> str:
    return next(line for line in page(status).splitlines() if line.startswith("mqtt "))


async def status_of(rig: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await rig.admin("GET", "/admin/status")).json
    return found


async def away_for(rig: Any, broker: Broker, seconds: float, policies: tuple[str, ...], every_s: float) -> dict[str, Any]:
    """Stops the broker for so long while requests and changes of policy come, one after the other; the status at the end."""
    await broker.stop()
    await eventually(lambda: [one["after"] for one in rig.events("mqtt")][:2] == ["connected", "away"])
    loop = asyncio.get_running_loop()
    end_s, number = loop.time() + seconds, 0
    while loop.time() < end_s or number < len(policies):
        assert (await rig.post(chat(tokens=2))).status == 200
        await rig.admin("POST", "/admin/policy", {"policy": policies[number % len(policies)]})
        number += 1
        await asyncio.sleep(every_s)
    return await status_of(rig)


async def test_status_and_doctor_say_that_the_broker_is_away_and_what_was_dropped(tmp_path: Path, broker: Broker):
    async with running(tmp_path, mqtt=broker.config(queue_most=QUEUE_MOST)) as rig:
        await eventually(lambda: [one["after"] for one in rig.events("mqtt")] == ["connected"])
        there = await status_of(rig)
        assert line(there).startswith(f"mqtt      127.0.0.1:{broker.port} connected for ")
        assert (examined(there).state, examined(there).do) == ("OK", "")
        status = await away_for(rig, broker, 1.0, ("edf", "sjf", "wfq", "fcfs"), 0.05)
        mqtt = status["mqtt"]
        assert (mqtt["connected"], mqtt["broker"]) == (False, f"127.0.0.1:{broker.port}")
        assert 0.9 <= mqtt["for_s"] < 20.0
        assert mqtt["waiting"] >= QUEUE_MOST
        assert mqtt["dropped"] >= 1
        text = line(status)
        assert f"AWAY for {mqtt['for_s']:.1f} s: " in text
        assert "Connection refused" in text or "Disconnected" in text
        assert f"{mqtt['waiting']} messages wait, {mqtt['dropped']} messages were dropped since the gateway started" in text
        assert (examined(status).state, examined(status).found) == ("WARN", text.removeprefix("mqtt      "))
        await broker.start()
        await eventually(lambda: rig.events("mqtt")[-1]["after"] == "connected", 20.0)
        again = await status_of(rig)
        assert again["mqtt"]["connected"]
        assert again["mqtt"]["for_s"] < 5.0
        assert again["mqtt"]["dropped"] >= mqtt["dropped"], "what was lost stays known"


async def test_without_a_broker_the_pages_say_nothing_of_it(tmp_path: Path):
    async with running(tmp_path) as rig:
        status = await status_of(rig)
    assert status["mqtt"] is None
    assert "mqtt" not in page(status)
    assert [check for check in check_gateway(Config(), status, "") if check.name == "mqtt"] == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(240)
async def test_a_broker_that_is_gone_for_a_minute(tmp_path: Path, broker: Broker):
    async with broker.client(**lasting()):
        pass
    async with running(tmp_path, mqtt=broker.config(queue_most=QUEUE_MOST)) as rig:
        await eventually(lambda: [one["after"] for one in rig.events("mqtt")] == ["connected"])
        status = await away_for(rig, broker, 60.0, ("edf", "sjf", "wfq", "fcfs"), 1.0)
        mqtt = status["mqtt"]
        assert 58.0 <= mqtt["for_s"] < 90.0
        assert mqtt["dropped"] > 50, "each change of policy is an event or more, and five are kept"
        assert len([one for one in rig.events("mqtt") if one["after"] == "away"]) < 5, "the same reason is not reported at every attempt"
        await rig.admin("POST", "/admin/policy", {"policy": "edf"})
        await broker.start()
        await eventually(lambda: rig.events("mqtt")[-1]["after"] == "connected", RETRY_MOST_S + 10.0)
        async with broker.client(**lasting()) as client:
            await client.hears("state/policy", name="edf")
            await client.hears("event/policy", after="edf (operator)")
            assert len([one for one in client.on("event/policy") if one["after"] != "edf (operator)"]) < QUEUE_MOST
        assert (await status_of(rig))["mqtt"]["waiting"] == 0
