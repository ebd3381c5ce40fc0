"""The operators' API on a gateway that serves, and its client."""

import asyncio
import hashlib
import socket
from pathlib import Path
from typing import Any

import orjson
import pytest
from gateway_kit import chat, eventually, gateway_config, running

from hmas.controller.admin.client import AdminClient
from hmas.controller.admin.token import read_token
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.controller.core.errors import AdminError, ConfigError

NIGHT = {"version": 1, "author": "ana", "reason": "night shift", "expires": None, "policy": {"name": "wfq"}}


async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The client is synchronous, as the CLI is; the gateway runs in this loop."""
    return await asyncio.to_thread(function, *args, **kwargs)


async def test_the_status_page(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        await rig.post(chat(tokens=5))
        status = await call(rig.operator.status)
    assert status["ready"]
    assert status["policy"]["name"] == "fcfs"
    assert status["policy"]["source"] == "configured"
    assert status["queue"]["queued"] == 0
    assert [item["name"] for item in status["instances"]] == ["sim-1", "sim-2"]
    assert all(item["healthy"] and item["kind"] == "sim" and item["models"] == ["tiny"] for item in status["instances"])
    assert set(status["agents"]) == {"perception", "prediction", "qos", "meta", "statera", "enabled"}
    assert status["agents"]["meta"]["age_s"] is None
    states = {name: agent["state"] for name, agent in status["agents"].items() if name != "enabled"}
    assert states == {"perception": "ok", "prediction": "ok", "qos": "starting", "meta": "starting", "statera": "starting"}
    assert status["config"] == {"preset": "default", "engines": 2, "tenants": 0, "no_auth": True, "advice": []}
    assert status["bus"]["connected"]
    assert status["counts"]["arrived"] == status["counts"]["ended"]["completed"] == 1
    assert status["counts"]["conserved"]
    assert status["goodput"]["slo_met"] == 1
    assert status["goodput"]["goodput_rate"] == 1.0
    assert status["goodput"]["ttft_ms"]["p99"] > 0


async def test_forcing_and_releasing_the_policy(tmp_path: Path):
    async with running(tmp_path) as rig:
        client = rig.operator
        forced = await call(client.force_policy, "two-lane", parameters={"threshold_ms": 900.0}, author="ana", reason="long tails")
        assert (forced["name"], forced["source"], forced["reason"]) == ("two-lane", "operator", "ana: cli-policy: long tails")
        assert forced["parameters"]["threshold_ms"] == 900
        assert {item["name"] for item in forced["available"]} >= {"fcfs", "edf", "sjf", "two-lane", "wfq"}
        assert rig.gateway.scheduler.policy == "two-lane", "in force when the answer is there"
        assert (rig.overrides / "cli-policy.json").exists(), "the directory is the one truth"
        released = await call(client.release_policy)
        assert (released["released"], released["name"]) == (True, "fcfs")
        assert (await call(client.release_policy))["released"] is False


async def test_forcing_and_releasing_knobs(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        client = rig.operator
        await call(client.force_knobs, n_run=5)
        await call(client.force_knobs, "sim-2", n_run=2, token_budget=100)
        knobs = {item["name"]: item for item in (await call(client.knobs))["instances"]}
        assert (knobs["sim-1"]["n_run"]["value"], knobs["sim-2"]["n_run"]["value"]) == (5, 2)
        assert knobs["sim-2"]["token_budget"]["value"] == 100
        await eventually(lambda: rig.sims[1].model.snapshot("x", 0).max_num_seqs == 2)
        await call(client.force_knobs, "sim-2", token_budget=90)
        (held,) = (item for item in (await call(client.knobs))["instances"] if item["name"] == "sim-2")
        assert (held["n_run"]["value"], held["token_budget"]["value"]) == (2, 90), "what is not named again stays"
        assert (await call(client.release_knobs, "sim-2"))["released"]
        knobs = {item["name"]: item for item in (await call(client.knobs))["instances"]}
        assert knobs["sim-2"]["n_run"]["value"] == 5
        assert (await call(client.release_knobs))["released"]


async def test_overrides_from_end_to_end(tmp_path: Path):
    async with running(tmp_path) as rig:
        client = rig.operator
        assert (await call(client.validate_override, "night", NIGHT))["valid"]
        assert rig.gateway.scheduler.policy == "fcfs", "validating changes nothing"
        held = await call(client.put_override, "night", NIGHT)
        assert [item["id"] for item in held["overrides"]] == ["night"]
        assert held["forced"] == ["policy"]
        await call(client.put_override, "later", NIGHT | {"policy": {"name": "sjf"}})
        conflicts = (await call(client.overrides))["conflicts"]
        assert conflicts == [{"setting": "policy", "winner": "night", "losers": ["later"]}]
        assert (await call(client.remove_override, "night"))["removed"] == ["night"]
        assert rig.gateway.scheduler.policy == "sjf"
        assert (await call(client.clear_overrides))["removed"] == ["later"]
        assert rig.gateway.scheduler.policy == "fcfs"
        with pytest.raises(AdminError, match="no override 'night'"):
            await call(client.remove_override, "night")


async def test_clearing_everything_takes_refused_files_with_it(tmp_path: Path):
    ghost = orjson.dumps({"version": 1, "author": "a", "reason": "r", "expires": None, "engines": {"ghost": {"drain": True}}})
    async with running(tmp_path) as rig:
        await call(rig.operator.put_override, "night", NIGHT)
        for name in ("ghost.json", "bad name.json"):
            (rig.overrides / name).write_bytes(ghost)
        await rig.gateway.watch.scan()
        assert set(rig.gateway.watch.errors) == {"ghost.json", "bad name.json"}
        cleared = await call(rig.operator.clear_overrides)
        assert cleared["removed"] == ["night", "ghost"]
        assert [item["file"] for item in cleared["refused"]] == ["bad name.json"], "which no id names, and which can never come into force"
        assert [file.name for file in rig.overrides.iterdir()] == ["bad name.json"]

        (rig.overrides / "folder.json").mkdir()
        (rig.overrides / "ghost.json").write_bytes(ghost)
        await rig.gateway.watch.scan()
        with pytest.raises(AdminError, match=r"cannot remove .*folder\.json: Is a directory"):
            await call(rig.operator.clear_overrides)
        assert not (rig.overrides / "ghost.json").exists(), "one that cannot be removed holds up no other"


@pytest.mark.parametrize(
    ("method", "path", "document", "status", "where", "says"),
    [
        ("POST", "/admin/policy", {"policy": "lifo"}, 400, "$.policy.name", "lifo"),
        ("POST", "/admin/policy", {"policy": "edf", "parameters": {"nope": 1}}, 400, "$.policy", "nope"),
        ("POST", "/admin/policy", {"policy": "edf", "for_s": -1}, 400, "$.for_s", "366 days"),
        ("POST", "/admin/policy", {"policy": "edf", "for_s": 0.5}, 400, "$.for_s", "at least 1"),
        ("POST", "/admin/policy", {"polcy": "edf"}, 400, "$.polcy", "allowed"),
        ("POST", "/admin/knobs", {"instance": "ghost", "n_run": 1}, 400, "$.knobs.ghost", "sim-1"),
        ("POST", "/admin/knobs", {"instance": 5, "n_run": 1}, 400, "$.instance", "sim-1"),
        ("POST", "/admin/knobs", {"instance": "sim-1"}, 400, "$.knobs.sim-1", "n_run"),
        ("POST", "/admin/knobs", {"n_run": 0}, 400, "$.knobs.*.n_run", "0"),
        ("POST", "/admin/overrides", {"version": 2}, 400, "$.", "version"),
        ("POST", "/admin/overrides?id=../etc", NIGHT, 400, "", "override id"),
        ("POST", "/admin/overrides/validate", NIGHT | {"engines": {"ghost": {"drain": True}}}, 400, "$.engines.ghost", "sim-1"),
        ("POST", "/admin/engines/ghost/drain", None, 404, "", "sim-1"),
        ("GET", "/admin/events?limit=many", None, 400, "limit", "1 to 2000"),
        ("GET", "/admin/nothing", None, 404, "", "/admin/nothing"),
        ("PUT", "/admin/policy", {}, 405, "", "DELETE, GET"),
    ],
)
async def test_mistakes_get_the_json_path(tmp_path: Path, method: str, path: str, document: object, status: int, where: str, says: str):
    async with running(tmp_path) as rig:
        answer = await rig.admin(method, path, document)
        assert rig.gateway.control.directives.forced == ()
    assert answer.status == status
    assert answer.error["path"].startswith(where)
    assert says in answer.error["message"]
    assert answer.error["code"]


async def test_bodies_that_are_no_json(tmp_path: Path):
    async with running(tmp_path) as rig:
        headers = {"authorization": f"Bearer {read_token(tmp_path / ADMIN_TOKEN_FILE)}", "content-type": "application/json"}
        for data, code in ((b"{half", "invalid_json"), (b"[1]", "invalid_json"), (b" " * 70_000, "request_too_large")):
            async with rig.session.post(rig.admin_url + "/admin/policy", data=data, headers=headers) as response:
                assert orjson.loads(await response.read())["error"]["code"] == code


async def test_events_tell_what_changed(tmp_path: Path):
    async with running(tmp_path) as rig:
        client = rig.operator
        await call(client.force_policy, "sjf", author="ana", reason="try")
        events = await call(client.events, 5)
        assert len(await call(client.events, 1)) == 1
    policy = next(event for event in events if event["kind"] == "policy")
    assert (policy["source"], policy["before"], policy["after"]) == ("operator", "fcfs (configured)", "sjf (operator)")
    assert "try" in policy["reason"]


async def test_the_token_is_asked_for(tmp_path: Path):
    digest = hashlib.sha256(b"secret").hexdigest()
    async with running(tmp_path, gateway=gateway_config(admin_token_sha256=digest)) as rig:
        for token in ("", "wrong", digest):
            with pytest.raises(AdminError, match="requires the operators' token"):
                await call(AdminClient(rig.admin_url, token=token).status)
        assert (await call(AdminClient(rig.admin_url, token="secret").status))["ready"]
        assert (await rig.admin("DELETE", "/admin/overrides")).status == 401


async def test_an_override_directory_that_cannot_be_written(tmp_path: Path):
    async with running(tmp_path) as rig:
        (tmp_path / "overrides").rmdir()
        (tmp_path / "overrides").write_text("in the way")
        with pytest.raises(AdminError, match="cannot write"):
            await call(rig.operator.force_policy, "sjf")
        assert rig.gateway.scheduler.policy == "fcfs"


def test_no_gateway_says_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AdminError, match="hmas up"):
            AdminClient(url).status()


def test_a_gateway_that_does_not_answer():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(AdminError, match="did not answer within"):
            AdminClient(url, timeout_s=0.05).status()


async def test_something_else_on_that_port(tmp_path: Path):
    async with running(tmp_path) as rig:
        with pytest.raises(AdminError):
            await call(AdminClient(rig.url).status)


@pytest.mark.parametrize("url", ["", "localhost:8081", "ftp://x", "http://", "http://h:80811", "http://h:808l", "http://[::1"])
def test_an_address_that_is_none(url: str):
    with pytest.raises(ConfigError, match="allowed"):
        AdminClient(url)
