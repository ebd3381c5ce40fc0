"""Messages that a real broker refuses, or on which it hangs up: they are counted and reported, and what comes behind them arrives."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import eventually, running
from mqtt_kit import ACL, MISSING, Broker
from typing_kit import known

from hmas.controller.config.mqtt import MqttConfig
from hmas.controller.observability.exporters.mqtt_outbox import Outbox, Outgoing

pytestmark = [pytest.mark.mqtt, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")]
NO_EVENTS = ACL.replace("topic readwrite hmas/event/#\n", "")
LINK = "hmas.controller.observability.exporters.mqtt_link"
BATCH = 20


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """It tries again at once."""
    monkeypatch.setattr(f"{LINK}.RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(f"{LINK}.RETRY_MOST_S", 0.01)


@asynccontextmanager
async def linked(mqtt: MqttConfig, outbox: Outbox) -> AsyncIterator[Any]:
    """A connection without a gateway, and all that it reports."""
    from hmas.controller.observability.exporters.mqtt_link import MqttLink

    link: Any = MqttLink(mqtt, outbox, birth=b"{}", will=b"{}", env=os.environ)
    link.breaks, link.refusals = [], []
    link.on_change = lambda reason: link.breaks.append(reason) if reason else None
    link.on_refused = link.refusals.append
    link.start()
    try:
        yield link
    finally:
        await link.close()


def note(text: str, number: int = 0) -> Outgoing:
    return Outgoing(f"hmas/event/{text}", b'{"number": %d}' % number)


def dropped_by(outbox: Outbox) -> list[int]:
    found: list[int] = []
    outbox.dropped = found.append
    return found


async def test_what_the_broker_refuses_is_counted_reported_and_not_tried_again(tmp_path: Path, certificates: Path):
    async with (
        Broker(tmp_path / "broker", certificates, acl=NO_EVENTS) as broker,
        broker.client() as alice,
        running(tmp_path, mqtt=broker.config()) as rig,
    ):
        await alice.hears("state/health")
        report = known(rig.gateway.mqtt)
        await eventually(lambda: [one["after"] for one in rig.events("mqtt")] == ["connected", "refused"])
        refused = rig.events("mqtt")[-1]
        assert refused["severity"] == "warning"
        assert refused["reason"].startswith("hmas/event/")
        assert refused["reason"].endswith(": Not authorized")
        before = report()["refused"]
        await rig.admin("POST", "/admin/policy", {"policy": "edf"})
        await alice.hears("state/policy", name="edf")
        await eventually(lambda: report()["refused"] > before and not report()["waiting"])
        status = (await rig.admin("GET", "/admin/status")).json["mqtt"]
        assert status["connected"]
        assert status["dropped"] == 0
        assert status["refusal"].endswith(": Not authorized")
        assert 0.0 <= status["refused_ago_s"] < 60.0
        assert [one["after"] for one in rig.events("mqtt")] == ["connected", "refused"], "once: the event about it is refused, too"
        events = len(rig.gateway.event_log.newest(1000))
        assert status["refused"] == events, "each was tried once"
        assert alice.on("event/policy") == []
        metrics = (await rig.get("/metrics")).body.decode()
        assert f"hmas_mqtt_dropped_messages_total {events}.0" in metrics


async def test_a_status_that_the_broker_refuses_is_reported(tmp_path: Path, certificates: Path):
    acl = ACL.replace("topic readwrite hmas/status\n", "")
    outbox = Outbox(10)
    outbox.add(note("a", 1))
    async with (
        Broker(tmp_path / "broker", certificates, acl=acl) as broker,
        broker.client() as alice,
        linked(broker.config(), outbox) as link,
    ):
        await alice.hears("event/a", number=1)
        assert link.refusals == ["hmas/status: Not authorized"]


@pytest.mark.parametrize(
    ("limits", "bad"),
    [
        ("message_size_limit 2000", Outgoing("hmas/event/large", b"x" * 5000)),
        ("", Outgoing("hmas/event" + "/deep" * 250, b"{}")),
        ("", Outgoing("hmas/event/\1", b"{}")),
    ],
    ids=["too large", "too many levels", "a character that no topic has"],
)
async def test_a_message_on_which_the_broker_hangs_up_holds_up_no_other(tmp_path: Path, certificates: Path, limits: str, bad: Outgoing):
    outbox = Outbox(100)
    dropped = dropped_by(outbox)
    for number in range(3 * BATCH):
        outbox.add(bad if number == BATCH // 2 else note("a", number))
    outbox.keep("hmas/state/policy", b"{}")
    async with (
        Broker(tmp_path / "broker", certificates, limits=limits) as broker,
        broker.client() as alice,
        linked(broker.config(), outbox) as link,
    ):
        for number in (0, BATCH, 3 * BATCH - 1):
            await alice.hears("event/a", number=number)
        await eventually(lambda: not len(outbox))
        assert {one["number"] for one in alice.on("event/a")} == set(range(3 * BATCH)) - {BATCH // 2}
        assert (dropped, outbox.refused_total, outbox.dropped_total) == ([1], 1, 0)
        (refusal,) = link.refusals
        assert refusal.startswith(f"{bad.topic}: broke the connection 3 times: ")
        assert link.connected


async def test_what_is_larger_than_the_broker_announces_is_not_sent(tmp_path: Path, certificates: Path):
    outbox = Outbox(100)
    for message in (note("a", 1), Outgoing("hmas/event/large", b"x" * 5000), note("a", 2)):
        outbox.add(message)
    async with (
        Broker(tmp_path / "broker", certificates, limits="max_packet_size 2000") as broker,
        broker.client() as alice,
        linked(broker.config(), outbox) as link,
    ):
        await alice.hears("event/a", number=2)
        assert link.refusals == ["hmas/event/large: larger than the 2000 bytes that the broker takes"]
        assert link.breaks == []


@pytest.mark.parametrize(("limits", "most"), [("max_inflight_messages 5", 5), ("max_inflight_messages 100", BATCH)])
async def test_no_more_are_under_way_than_the_broker_takes(tmp_path: Path, certificates: Path, limits: str, most: int):
    from hmas.controller.observability.exporters.mqtt_link import client_of, password_of
    from hmas.controller.observability.exporters.mqtt_sender import Sender

    async with Broker(tmp_path / "broker", certificates, limits=limits) as broker:
        mqtt = broker.config()
        client = await client_of(mqtt, password_of(mqtt, {}), name="one")
        sender = Sender(client)
        async with client:
            assert sender.most == most
            assert await sender.send(note("a")) == ""


async def test_a_response_topic_breaks_no_connection(tmp_path: Path, broker: Broker):
    async with running(tmp_path, mqtt=broker.config()) as rig, broker.client() as alice:
        await alice.hears("status", state="online")
        # mosquitto passes such a topic on as a property, and hangs up on whoever publishes there.
        await alice.send({"command": "policy.release"}, answer_on="/".join("a" * 250))
        assert (await alice.ask({"command": "policy.release"}))["ok"]
        assert len(rig.events("mqtt.command")) == 2
        assert [one["after"] for one in rig.events("mqtt")] == ["connected"]


@pytest.mark.parametrize("text", ["hmas/#", "hm+as"])
async def test_what_the_library_refuses_is_given_up(tmp_path: Path, broker: Broker, text: str):
    outbox = Outbox(10)
    for message in (Outgoing(text, b"{}"), note("a", 1)):
        outbox.add(message)
    async with broker.client() as alice, linked(broker.config(), outbox) as link:
        await alice.hears("event/a", number=1)
        assert link.refusals == [f"{text}: Publish topic cannot contain wildcards."]
        assert link.breaks == []
