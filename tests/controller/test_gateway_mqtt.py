"""State, events and decisions of a gateway at a real MQTT broker, and what a broker that fails does not disturb."""

import socket
from pathlib import Path

import pytest
from gateway_kit import chat, eventually, running
from mqtt_kit import MISSING, Broker, lasting, make_certificates

from hmas.controller.config.mqtt import MqttConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.messages import MetaDecision
from hmas.controller.gateway.metrics_page import MetricsPage
from hmas.controller.observability.exporters import mqtt

pytestmark = [pytest.mark.mqtt, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")]


async def test_what_is_in_force_is_retained_and_events_come_as_they_happen(tmp_path: Path, broker: Broker, monkeypatch):
    monkeypatch.setattr(mqtt, "GOODPUT_EVERY_S", 0.05)
    async with broker.client() as early:
        async with running(tmp_path, engines=2, mqtt=broker.config()) as rig:
            await early.hears("status", state="online")
            assert (await rig.post(chat(tokens=3))).status == 200
            await eventually(lambda: any(one["classes"] for one in early.on("state/goodput")))
            await rig.admin("POST", "/admin/policy", {"policy": "edf", "author": "ana", "reason": "release day"})
            await early.hears("state/policy", name="edf", source="operator")
            event = await early.hears("event/override.put", subject="cli-policy")
            assert event["reason"] == "ana: release day"
            async with broker.client() as late:
                policy = await late.hears("state/policy", name="edf")
                assert policy["forced"] == ["policy"]
                windows = await late.hears("state/windows")
                assert windows["instances"]["sim-1"]["n_run"]["value"] == 16
                health = await late.hears("state/health")
                assert {name: one["healthy"] for name, one in health["instances"].items()} == {"sim-1": True, "sim-2": True}
                goodput = await late.hears("state/goodput")
                assert [(one["ended"], one["goodput_rate"]) for one in goodput["classes"].values()] == [(1, 1.0)]
                assert late.on("event/override.put") == [], "events are not retained"
        await early.hears("status", state="offline")
        await early.hears("event/gateway", after="stopped")


async def test_decisions_of_meta(tmp_path: Path, broker: Broker):
    decision = MetaDecision(sent_s=1.0, decision_id="d-1", policy="edf", previous="fcfs", reason="deadlines differ")
    async with broker.client() as client, running(tmp_path, mqtt=broker.config()) as rig:
        for _ in range(2):
            rig.gateway.subscriber.on_message(decision)
        await client.hears("decision", decision_id="d-1", policy="edf", reason="deadlines differ")
        await rig.admin("POST", "/admin/policy", {"policy": "sjf"})
        await client.hears("event/override.put")
        assert len(client.on("decision")) == 1, "a decision that comes twice is sent once"


async def test_the_last_will_tells_that_a_gateway_has_gone(tmp_path: Path, broker: Broker):
    async with broker.client() as client, running(tmp_path, mqtt=broker.config()):
        await client.hears("status", state="online")
        # Another client of the same name takes the session over: the broker drops the gateway.
        async with broker.client("gateway", identifier="gateway-of-the-test"):
            await client.hears("status", state="offline")
        await eventually(lambda: [one["state"] for one in client.on("status")].count("online") == 2, 10.0)


async def test_a_broker_that_goes_and_comes_back(tmp_path: Path, broker: Broker):
    async with broker.client(**lasting()):
        pass
    async with running(tmp_path, mqtt=broker.config(queue_most=5)) as rig:
        await eventually(lambda: [one["after"] for one in rig.events("mqtt")] == ["connected"])
        await broker.stop()
        await eventually(lambda: [one["after"] for one in rig.events("mqtt")][:2] == ["connected", "away"])
        for policy in ("edf", "sjf", "wfq"):
            assert (await rig.post(chat(tokens=2))).status == 200
            await rig.admin("POST", "/admin/policy", {"policy": policy})
        metrics = (await rig.get("/metrics")).body.decode()
        assert "hmas_mqtt_connected 0.0" in metrics
        dropped = next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("hmas_mqtt_dropped_messages_total"))
        assert dropped >= 1, "the queue holds five of the events of three changes"
        await broker.start()
        async with broker.client(**lasting()) as client:
            await client.hears("state/policy", name="wfq")
            await client.hears("status", state="online")
            await client.hears("event/policy", after="wfq (operator)")
            assert [one for one in client.on("event/policy") if one["after"] == "edf (operator)"] == [], "the oldest are dropped"
        assert "hmas_mqtt_connected 1.0" in MetricsPage(rig.gateway).read()[0].decode(), "a new page: the first one is kept for a second"


# paho-mqtt leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_wrong_certificate_stops_nothing(tmp_path: Path, broker: Broker):
    other = tmp_path / "other"
    other.mkdir()
    make_certificates(other, ca="stranger")
    async with running(tmp_path, mqtt=broker.config(tls_ca=str(other / "stranger.pem"))) as rig:
        await eventually(lambda: rig.events("mqtt"))
        (event,) = rig.events("mqtt")
        assert (event["after"], event["severity"]) == ("away", "warning")
        assert "certificate verify failed" in event["reason"]
        assert (await rig.post(chat(tokens=2))).status == 200


async def test_a_wrong_password_stops_nothing(tmp_path: Path, broker: Broker, monkeypatch):
    monkeypatch.setenv("WRONG", "wrong")
    config = broker.config(password_file="", password_env="WRONG")
    async with running(tmp_path, mqtt=config) as rig:
        await eventually(lambda: rig.events("mqtt"))
        assert "Not authorized" in rig.events("mqtt")[0]["reason"]
        assert (await rig.post(chat(tokens=2))).status == 200


async def test_a_broker_that_never_answers_stops_nothing(tmp_path: Path, broker: Broker, monkeypatch):
    monkeypatch.setattr("hmas.controller.observability.exporters.mqtt_link.TIMEOUT_S", 0.1)
    # The system accepts connections that the process has not taken yet.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = broker.config(port=silent.getsockname()[1], tls=False, commands=False)
        async with running(tmp_path, mqtt=config) as rig:
            await eventually(lambda: rig.events("mqtt"))
            assert rig.events("mqtt")[0]["reason"] == "Operation timed out"
            assert (await rig.post(chat(tokens=2))).status == 200


async def test_a_client_certificate_instead_of_a_user(tmp_path: Path, certificates: Path):
    own = {"tls_cert": str(certificates / "client.pem"), "tls_key": str(certificates / "client.key"), "user": "", "password_file": ""}
    async with (
        Broker(tmp_path / "broker", certificates, by_certificate=True) as broker,
        running(tmp_path, mqtt=broker.config(**own)) as rig,
    ):
        await eventually(lambda: [one["after"] for one in rig.events("mqtt")] == ["connected"])


async def test_a_missing_password_is_told_before_the_gateway_serves(tmp_path: Path):
    config = MqttConfig(host="127.0.0.1", user="gateway", password_env="NOT_SET_ANYWHERE")
    with pytest.raises(ConfigError, match=r"mqtt\.password_env: the environment has no NOT_SET_ANYWHERE"):
        async with running(tmp_path, mqtt=config):
            pass
