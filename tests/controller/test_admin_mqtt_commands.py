"""Commands over MQTT without a broker: routers and knobs are forced and released as over HTTP, and audited as all commands are."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from gateway_kit import Rig, running
from mqtt_kit import PAGE

from hmas.controller.admin.changes import Changes
from hmas.controller.admin.mqtt_commands import MqttCommands
from hmas.controller.gateway.operator_view import GatewayOperations
from hmas.controller.runtime.clock import SystemClock

Say = Callable[..., Awaitable[dict[str, Any]]]


def commands(rig: Rig) -> MqttCommands:
    clock = SystemClock()
    changes = Changes(GatewayOperations(rig.gateway), clock)
    return MqttCommands(changes, users=["alice"], per_minute=1000, clock=clock, note=rig.gateway.observer.note)


def sayer(rig: Rig) -> Say:
    taken = commands(rig)

    async def say(command: str, **keys: Any) -> dict[str, Any]:
        answer = await taken.answer("alice", orjson.dumps({"command": command, **keys}), retained=False)
        assert answer is not None
        return answer

    return say


def audited(rig: Rig) -> list[tuple[str, str, str, str]]:
    return [(event["subject"], event["after"], event["reason"], event["source"]) for event in rig.events("mqtt.command")]


async def test_routers_are_forced_and_released(tmp_path: Path):
    async with running(tmp_path) as rig:
        say = sayer(rig)
        answer = await say("router.force", router="default", weights={"prefix": 0.6}, reason="long chats", for_s=600)
        assert answer == {"version": 1, "ok": True, "command": "router.force", "changed": True}
        held = rig.gateway.watch.held["cli-router-_all"]
        assert (held.author, held.reason) == ("alice", "long chats")
        assert held.expires_s is not None
        assert (await say("router.force", router="session-affine", model="tiny"))["ok"]
        assert rig.gateway.watch.held["cli-router-tiny"].reason == "commanded over MQTT"
        shown = {one["model"]: (one["name"], one["source"]) for one in (await rig.admin("GET", "/admin/routers")).json["models"]}
        assert shown == {"*": ("default", "operator"), "tiny": ("session-affine", "operator")}
        assert (await say("router.release", model="tiny"))["changed"] is True
        assert (await say("router.release", reason="quiet again"))["changed"] is True
        assert (await say("router.release"))["changed"] is False
        assert dict(rig.gateway.watch.held) == {}
        assert audited(rig) == [
            ("alice", "router.force", "long chats", "operator"),
            ("alice", "router.force", "", "operator"),
            ("alice", "router.release", "", "operator"),
            ("alice", "router.release", "quiet again", "operator"),
            ("alice", "router.release", "", "operator"),
        ]


async def test_knobs_are_forced_and_released(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        say = sayer(rig)

        def controls(name: str) -> tuple[int, int | None]:
            found = rig.gateway.control.directives.instances[name].controls
            return found.n_run, found.token_budget

        before = controls("sim-1")
        assert (await say("knobs.force", n_run=3, reason="memory"))["changed"] is True
        assert (await say("knobs.force", instance="sim-2", n_run=2, token_budget=256, for_s=60))["ok"]
        assert [controls("sim-1"), controls("sim-2")] == [(3, before[1]), (2, 256)]
        authors = {name: held.author for name, held in rig.gateway.watch.held.items()}
        assert authors == {"cli-knobs-_all": "alice", "cli-knobs-sim-2": "alice"}
        assert (await say("knobs.release", instance="sim-2"))["changed"] is True
        assert controls("sim-2") == (3, before[1])
        assert (await say("knobs.release"))["changed"] is True
        assert (await say("knobs.release"))["changed"] is False
        assert controls("sim-1") == before
        assert [what for _, what, _, _ in audited(rig)] == ["knobs.force"] * 2 + ["knobs.release"] * 3


@pytest.mark.parametrize(
    ("command", "keys", "code", "path"),
    [
        ("router.force", {"router": "fastest"}, "invalid_override", "$.routers.*"),
        ("router.force", {"router": "default", "weights": {"magic": 1}}, "invalid_override", "$.routers.*"),
        ("router.force", {"router": "default", "model": ""}, "invalid_request", "$.model"),
        ("router.force", {"router": "default", "author": "ceo"}, "invalid_request", "$.author"),
        ("router.release", {"router": "default"}, "invalid_request", "$.router"),
        ("router.release", {"model": 7}, "invalid_request", "$.model"),
        ("knobs.force", {}, "invalid_override", "$.knobs.*"),
        ("knobs.force", {"n_run": 0}, "invalid_override", "$.knobs.*.n_run"),
        ("knobs.force", {"n_run": 4, "instance": "gpu-9"}, "invalid_override", "$.knobs.gpu-9"),
        ("knobs.force", {"n_run": 4, "instance": ["sim-1"]}, "invalid_request", "$.instance"),
        ("knobs.force", {"n_run": 4, "for_s": -1}, "invalid_request", "$.for_s"),
        ("knobs.release", {"instance": None}, "invalid_request", "$.instance"),
        ("knobs.release", {"n_run": 4}, "invalid_request", "$.n_run"),
    ],
)
async def test_a_wrong_command_changes_nothing_and_is_an_event(tmp_path: Path, command: str, keys: dict[str, Any], code: str, path: str):
    async with running(tmp_path) as rig:
        answer = await sayer(rig)(command, **keys)
        assert (answer["ok"], answer["error"]["code"], answer["error"]["path"]) == (False, code, path), answer
        known = command if answer["command"] else "command"
        assert audited(rig) == [("alice", f"{known} refused", answer["error"]["message"], "operator")]
        assert dict(rig.gateway.watch.held) == {}


async def test_the_page_lists_every_command(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await sayer(rig)("reboot")
    for name in answer["error"]["message"].partition("allowed: ")[2].split(", "):
        assert f"| `{name}` |" in PAGE
