"""Commands over a real MQTT broker: applied, answered and audited as a change over HTTP is, and refused where they are wrong."""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest
from gateway_kit import chat, eventually, running
from mqtt_kit import ACL, MISSING, PAGE, Broker
from typing_kit import fenced, known

from hmas.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.mqtt, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")]
FORCE = {"command": "policy.force", "policy": "edf", "reason": "deadlines", "for_s": 600}
NIGHT = {"version": 1, "author": "ana", "reason": "night shift", "expires": None, "policy": {"name": "wfq"}}


async def connected(rig: Any) -> None:
    await eventually(lambda: [one["after"] for one in rig.events("mqtt")] == ["connected"])


async def test_commands_change_what_is_in_force(tmp_path: Path, broker: Broker):
    async with running(tmp_path, engines=2, mqtt=broker.config()) as rig, broker.client() as alice:
        await connected(rig)
        assert await alice.ask(FORCE) == {"version": 1, "ok": True, "command": "policy.force", "changed": True}
        assert rig.gateway.scheduler.policy == "edf", "in force when the answer is there"
        (put,) = rig.events("override.put")
        assert put["reason"] == "alice: deadlines", "the user of the topic is the author"
        (audited,) = rig.events("mqtt.command")
        assert (audited["subject"], audited["after"], audited["reason"], audited["source"]) == (
            "alice",
            "policy.force",
            "deadlines",
            "operator",
        )
        assert (await alice.ask({"command": "policy.release"}))["changed"] is True
        assert (await alice.ask({"command": "policy.release"}))["changed"] is False
        assert rig.gateway.scheduler.policy == "fcfs"
        assert (await alice.ask({"command": "override.apply", "id": "night", "document": NIGHT}))["ok"]
        assert rig.gateway.scheduler.policy == "wfq"
        assert rig.gateway.watch.held["night"].author == "alice"
        assert (await alice.ask({"command": "override.clear", "id": "night"}))["ok"]
        assert (await alice.ask({"command": "engine.drain", "engine": "sim-1"}))["ok"]
        await alice.hears("state/windows", draining=["sim-1"])
        assert (await alice.ask({"command": "engine.undrain", "engine": "sim-1"}))["changed"] is True
        assert (await alice.ask({"command": "knobs.force", "instance": "sim-1", "n_run": 3}))["ok"]
        assert rig.gateway.control.directives.instances["sim-1"].controls.n_run == 3
        assert (await alice.ask({"command": "knobs.release", "instance": "sim-1"}))["changed"] is True
        assert (await alice.ask({"command": "router.force", "router": "session-affine"}))["ok"]
        assert rig.gateway.watch.held["cli-router-_all"].author == "alice"
        assert (await alice.ask({"command": "router.release"}))["changed"] is True
        metrics = (await rig.get("/metrics")).body.decode()
        assert 'hmas_mqtt_commands_total{result="done"} 11.0' in metrics


WRONG = {
    "no JSON": (b"{force", "invalid_json", "$"),
    "no object": (b"[]", "invalid_json", "$"),
    "unknown command": ({"command": "reboot"}, "invalid_request", "$.command"),
    "unknown policy": ({"command": "policy.force", "policy": "fastest"}, "invalid_override", "$.policy.name"),
    "unknown key": ({"command": "policy.force", "policy": "edf", "until": 3}, "invalid_request", "$.until"),
    "unknown engine": ({"command": "engine.drain", "engine": "gpu-9"}, "not_found", ""),
    "unknown override": ({"command": "override.clear", "id": "day"}, "not_found", ""),
    "another author": ({"command": "policy.force", "policy": "edf", "author": "ceo"}, "invalid_request", "$.author"),
    "older version": ({"version": 0, "command": "policy.force", "policy": "edf"}, "invalid_request", "$.version"),
    "too large": (b"[" + b" " * 70_000 + b"]", "request_too_large", ""),
}


async def test_a_wrong_command_gets_an_error_and_an_event(tmp_path: Path, broker: Broker):
    async with running(tmp_path, mqtt=broker.config()) as rig, broker.client() as alice:
        await connected(rig)
        for name, (command, code, path) in WRONG.items():
            answer = await alice.ask(command)
            assert (answer["ok"], answer["error"]["code"], answer["error"]["path"]) == (False, code, path), name
            assert rig.events("mqtt.command")[-1]["reason"] == answer["error"]["message"], name
        retained = await alice.ask(FORCE, retain=True)
        assert retained["error"]["code"] == "retained", "it would run again with every new session"
        await alice.send(b"", retain=True)
        assert rig.gateway.scheduler.policy == "fcfs"
        assert (await rig.post(chat(tokens=2))).status == 200
        assert (await alice.ask(FORCE))["ok"], "the next one is taken"


async def test_a_flood_of_commands(tmp_path: Path, broker: Broker):
    async with running(tmp_path, mqtt=broker.config(commands_per_minute=5)) as rig, broker.client() as alice:
        await connected(rig)
        await asyncio.gather(*(alice.send(FORCE) for _ in range(200)))
        await eventually(lambda: len(alice.on("response/alice")) == 200, 20.0)
        answers = alice.on("response/alice")
        assert 5 <= sum(one["ok"] for one in answers) <= 7
        assert {one["error"]["code"] for one in answers if not one["ok"]} == {"rate_limited"}
        assert len(rig.events("mqtt.command")) <= 14, "the refusals are one event"
        async with broker.client("rules") as rules:
            assert (await rules.ask({"command": "policy.release"}))["ok"], "a flood by one user keeps no other from sending"
        assert (await rig.post(chat(tokens=2))).status == 200


async def test_a_user_sends_on_its_own_topic_alone(tmp_path: Path, broker: Broker):
    async with running(tmp_path, mqtt=broker.config()) as rig, broker.client() as alice:
        await connected(rig)
        await alice.send(FORCE, to="rules")
        assert (await alice.ask({"command": "policy.release"}))["ok"]
        assert [one["subject"] for one in rig.events("mqtt.command")] == ["alice"]


async def test_an_answer_goes_nowhere_that_the_sender_may_not_write(tmp_path: Path, broker: Broker):
    async with running(tmp_path, mqtt=broker.config()) as rig, broker.client() as alice:
        await connected(rig)
        for topic in ("hmas/state/policy", "hmas/command/rules"):
            await alice.send({"command": "policy.release"}, answer_on=topic)
        await alice.ask(FORCE)
        assert all("ok" not in one for one in [*alice.on("state/policy"), *alice.on("command/rules")])


async def test_a_command_waits_for_a_gateway_that_is_away_even_where_the_broker_restarts(tmp_path: Path, broker: Broker):
    async with running(tmp_path, mqtt=broker.config()) as rig:
        await connected(rig)
    async with broker.client() as alice:
        await alice.send(FORCE)
    await broker.stop()
    await broker.start()
    async with running(tmp_path, mqtt=broker.config()) as rig:
        await eventually(lambda: rig.gateway.scheduler.policy == "edf", 10.0)


async def test_a_user_who_may_no_longer_send_commands(tmp_path: Path, broker: Broker):
    async with running(tmp_path, mqtt=broker.config()) as rig:
        await connected(rig)
    # The session at the broker still has the subscription to its topic.
    async with running(tmp_path, mqtt=broker.config(command_users=["rules"])) as rig, broker.client() as alice:
        await connected(rig)
        assert (await alice.ask(FORCE))["error"]["code"] == "forbidden"
        assert rig.gateway.scheduler.policy == "fcfs"


@pytest.mark.skipif(shutil.which("mosquitto_rr") is None, reason="not installed: mosquitto_rr (Debian: mosquitto-clients)")
async def test_the_rule_of_the_page(tmp_path: Path, certificates: Path):
    broker = Broker(tmp_path / "broker", certificates, acl=ACL.replace("user alice", "user alice\ntopic write site/#"))
    own = {"broker.example.com": "127.0.0.1", "8883": str(broker.port), "ca.pem": str(certificates / "ca.pem"), "gpu-1": "sim-1"}
    script = fenced(PAGE, "sh")
    for name, value in own.items():
        script = script.replace(name, value)
    async with broker, running(tmp_path, engines=2, mqtt=broker.config()) as rig, broker.client() as alice:
        await connected(rig)
        environment = {**os.environ, "PASSWORD": "rules"}
        rule = await asyncio.create_subprocess_exec(
            "sh", "-c", script, env=environment, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        answers = known(rule.stdout)
        try:
            for degrees, drained in (("39", True), ("35", True), ("29", False)):
                # Retained, as the rule may not listen yet when the first one is sent.
                await alice.client.publish("site/rack-7/celsius", degrees, qos=1, retain=True)
                if degrees != "35":
                    answer = orjson.loads(await asyncio.wait_for(answers.readline(), 10.0))
                    assert answer["ok"], answer
                assert ("sim-1" in rig.gateway.control.directives.draining) == drained
        finally:
            os.killpg(rule.pid, signal.SIGTERM)
            await rule.wait()
        assert rig.events("override.put")[0]["reason"] == "rules: rack 7 has 39 degrees"


@pytest.mark.parametrize("open_broker", [False, True])
async def test_the_check_finds_a_broker_that_keeps_no_topic_for_its_user(tmp_path, certificates, capsys, open_broker):
    acl = ACL.replace("topic read hmas/command/#", "topic readwrite hmas/command/#") if open_broker else ACL
    broker = Broker(tmp_path / "broker", certificates, acl=acl)
    config = broker.config()
    file = tmp_path / "hmas.yaml"
    known = {name: getattr(config, name) for name in ("host", "port", "tls_ca", "user", "password_file", "commands")}
    file.write_text("mqtt:\n" + "".join(f"  {name}: {str(value).lower() if value is True else value}\n" for name, value in known.items()))
    with file.open("a") as text:
        text.write("  command_users: [alice]\n")
    async with broker:
        code = await asyncio.to_thread(main, ["mqtt", "check", "--config", os.fspath(file)])
    shown = capsys.readouterr().out
    assert code == int(open_broker), shown
    assert ("FAIL" in shown) == open_broker
    assert "only alice may send on hmas/command/alice" in shown
    code = await asyncio.to_thread(main, ["mqtt", "check", "--config", os.fspath(file)])
    assert code == 1
    assert "refused" in capsys.readouterr().out
