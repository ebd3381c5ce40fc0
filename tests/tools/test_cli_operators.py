"""The operators' commands against a real gateway with two embedded engines, all in this process."""

import json
import time

import pytest
from installation_kit import Installation, commands

from hmas.controller.admin.client import AdminClient
from hmas.controller.scheduling.policies import registry as pool
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY, POLICIES


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    with Installation(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture
def hmas(installation, capsys, monkeypatch):
    yield from commands(installation, capsys, monkeypatch)


def of(result):
    """The JSON of a result that went well."""
    code, out, err = result
    assert (code, err) == (0, "")
    return json.loads(out)


def test_status(hmas):
    code, out, err = hmas("status")
    assert (code, err) == (0, "")
    assert "ready" in out
    assert f"policy    {DEFAULT_POLICY} (" in out
    assert "router    default (" in out
    assert "gpu-1" in out
    assert "switched off; policy and windows stay as configured" in out
    document = of(hmas("status", "--json"))
    assert document["counts"]["conserved"] is True
    assert [item["name"] for item in document["instances"]] == ["gpu-0", "gpu-1"]


def test_a_wrong_token_is_refused(hmas, monkeypatch, tmp_path):
    monkeypatch.setenv("HMAS_ADMIN_TOKEN", "wrong")
    file = tmp_path / "night.json"
    file.write_text(json.dumps(document(policy={"name": "fcfs"})))
    for command in (["status"], ["override", "validate", str(file), "--json"]):
        code, out, err = hmas(*command)
        assert (code, out) == (1, ""), "the file is not called invalid"
        assert "requires the operators' token" in err


def test_the_port_for_clients_and_a_name_left_empty_are_told(hmas, installation):
    code, _, err = hmas("status", "--admin", installation.url)
    assert (code, err) == (1, f"hmas: there is no /admin/status here; is {installation.url} the admin port of a gateway?\n")
    for command in (["explain", ""], ["decisions", "explain", ""], ["engines", "drain", "", "--reason", "r"], ["engines", "undrain", ""]):
        code, _, err = hmas(*command)
        assert (code, err) == (2, "hmas: a name is empty; allowed: the name or id of what is asked about\n")


def test_policy_list_and_show(hmas):
    names = [item["name"] for item in of(hmas("policy", "list", "--json"))]
    assert names == list(POLICIES)
    code, out, _ = hmas("policy", "list")
    assert code == 0
    assert any(line.startswith(f"*  {DEFAULT_POLICY}") for line in out.splitlines())
    assert any(line.startswith("srtf ") and "starves: long requests" in line for line in out.splitlines())
    assert any(line.startswith("predicted service time T_tot") and "the history of its tenant" in line for line in out.splitlines())
    assert hmas("policy", "show")[1].startswith(DEFAULT_POLICY)


def test_policy_show_of_one_tells_all_of_it(hmas):
    code, out, _ = hmas("policy", "show", "mlfq")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "parameter default range" in lines
    assert "boost_s 30 0.1 to 3600" in lines
    assert any(line.startswith("starvation none: a flow waits for the next boost") for line in lines)
    assert any(line.startswith("session fixed at intake") for line in lines)
    document = of(hmas("policy", "show", "mlfq", "--json"))
    assert {signal["name"] for signal in document["signals"]} >= {"session", "predicted output length"}
    assert document["from"] == ""
    code, out, err = hmas("policy", "show", "lifo")
    assert (code, out) == (1, "")
    assert "policy 'lifo' is unknown; allowed: fcfs, edf" in err


def test_policy_check_puts_a_class_through_the_suite(hmas, tmp_path, monkeypatch):
    (tmp_path / "late_policies.py").write_text(
        "from hmas.controller.scheduling.policies.fcfs import Fcfs\n"
        "class Last(Fcfs):\n"
        "    name = 'last'\n"
        "    def key(self, entry):\n"
        "        return -float(entry.seq)\n"
    )
    monkeypatch.chdir(tmp_path)
    # An item that is not there is not taken out again when the test is over; one that was set is.
    monkeypatch.setitem(pool.REGISTERED, "last", None)
    monkeypatch.delitem(pool.REGISTERED, "last")
    code, out, _ = hmas("policy", "check", "late_policies:Last")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["OK"] * 6 + ["FAIL"]
    assert "a request is passed 2500 times in a row" in out
    (tmp_path / "half.py").write_text("class Half(:\n")
    for text in ("late_policies:First", "half:Half"):
        code, _, err = hmas("policy", "check", text)
        assert code == 2
        assert f"'{text}' cannot be loaded" in err


def test_policy_force_and_release(hmas, installation):
    code, out, _ = hmas("policy", "force", "sjf", "--for", "10m", "--reason", "short first tonight", "--author", "alice")
    assert code == 0
    assert out.startswith("sjf")
    assert "by operator" in out
    assert "held for 10 min; `hmas policy release` ends it" in out
    document = of(hmas("override", "list", "--json"))
    (held,) = document["overrides"]
    assert held["id"] == "cli-policy"
    assert held["document"]["author"] == "alice"
    assert 590 < held["expires_s"] - time.time() <= 600
    assert (installation.state_dir / "overrides" / "cli-policy.json").exists()
    told = of(hmas("events", "--kind", "override.put", "--json"))[-1]
    assert json.loads(told["after"]) == held["document"], "as `hmas override apply` takes it"
    assert "sjf" in hmas("status")[1]
    assert hmas("policy", "release")[0] == 0
    assert of(hmas("policy", "show", "--json"))["source"] == "configured"
    code, out, _ = hmas("policy", "release")
    assert code == 1
    assert "was not held" in out


def test_router_list_show_force_and_release(hmas):
    code, out, _ = hmas("router", "list")
    assert code == 0
    assert any(line.startswith("*  default") and "queue=1, speed=" in line for line in out.splitlines())
    assert any(line.startswith("prefix ") for line in out.splitlines())
    assert "all others default queue=1, speed=" in " ".join(hmas("router", "show")[1].split())
    assert "queue=1, prefix=1" in hmas("router", "show", "prefix-aware")[1]
    code, _, err = hmas("router", "show", "nope")
    assert code == 1
    assert "router 'nope' is unknown; allowed: default" in err
    code, out, _ = hmas(
        "router", "force", "prefix-aware", "--weight", "prefix=0.5", "--model", "org/m", "--for", "10m", "--reason", "chats"
    )
    assert code == 0
    assert "held for 10 min; `hmas router release --model org/m` ends it" in out
    assert "router of org/m: prefix-aware (prefix=0.5)" in hmas("override", "list")[1]
    shown = of(hmas("router", "show", "--json"))["models"]
    assert [(one["model"], one["name"], one["source"]) for one in shown] == [
        ("*", "default", "configured"),
        ("org/m", "prefix-aware", "operator"),
    ]
    assert hmas("router", "release", "--model", "org/m")[0] == 0
    code, out, _ = hmas("router", "release")
    assert code == 1
    assert "no router was held" in out
    code, _, err = hmas("router", "force", "nope", "--reason", "r")
    assert code == 1
    assert "router 'nope' is unknown" in err


def test_policy_hints_and_refusals(hmas):
    two_lane = next(item for item in of(hmas("policy", "list", "--json")) if item["name"] == "two-lane")
    name, (low, high) = next(iter(two_lane["parameter_ranges"].items()))
    value = (low + high) / 2
    document = of(hmas("policy", "force", "two-lane", "--parameter", f"{name}={value}", "--reason", "r", "--json"))
    assert document["parameters"][name] == pytest.approx(value)
    code, out, err = hmas("policy", "force", "two-lane", "--parameter", f"{name}={high + 1}", "--reason", "r")
    assert (code, out) == (1, "")
    assert name in err
    assert "allowed: a number from" in err
    code, _, err = hmas("policy", "force", "lifo", "--reason", "r")
    assert code == 1
    assert "$.policy.name: got 'lifo' (a text); allowed: one of fcfs, edf, robust-edf, llf, slack, sjf, srtf, two-lane, priority" in err
    assert of(hmas("policy", "show", "--json"))["name"] == "two-lane"


def test_knobs(hmas):
    code, out, _ = hmas("knobs", "set", "gpu-0", "--n-run", "3", "--reason", "memory", "--for", "1h")
    assert code == 0
    assert "`hmas knobs release gpu-0` ends it" in out
    knobs = {item["name"]: item for item in of(hmas("knobs", "show", "--json"))["instances"]}
    assert (knobs["gpu-0"]["n_run"]["value"], knobs["gpu-0"]["n_run"]["source"]) == (3, "operator")
    assert knobs["gpu-1"]["n_run"]["source"] == "configured"
    assert "`hmas knobs release '*'` ends it" in hmas("knobs", "set", "*", "--n-run", "4", "--reason", "r")[1]
    assert of(hmas("knobs", "set", "*", "--n-run", "5", "--token-budget", "512", "--reason", "r", "--json"))
    knobs = {item["name"]: item for item in of(hmas("knobs", "show", "--json"))["instances"]}
    assert (knobs["gpu-0"]["n_run"]["value"], knobs["gpu-1"]["n_run"]["value"]) == (3, 5)
    assert knobs["gpu-0"]["token_budget"]["value"] == 512
    assert hmas("knobs", "release", "gpu-0")[0] == 0
    assert hmas("knobs", "release", "gpu-0")[0] == 1
    assert hmas("knobs", "release", "*")[0] == 0
    assert hmas("knobs", "set", "gpu-1", "--reason", "r")[0] == 2
    code, _, err = hmas("knobs", "set", "gpu-9", "--n-run", "3", "--reason", "r")
    assert code == 1
    assert "gpu-9: no such instance; allowed: *, gpu-0, gpu-1" in err


def test_engines(hmas):
    assert [item["name"] for item in of(hmas("engines", "list", "--json"))] == ["gpu-0", "gpu-1"]
    code, out, _ = hmas("engines", "drain", "gpu-1", "--reason", "driver update")
    assert code == 0
    assert "gpu-1 drains, 0 requests still run there; held until it is released; `hmas engines undrain gpu-1` ends it" in out
    assert "draining" in hmas("engines", "list")[1]
    assert "live: n_run, token_budget" in hmas("engines", "list")[1]
    assert hmas("engines", "undrain", "gpu-1")[0] == 0
    assert hmas("engines", "undrain", "gpu-1")[0] == 1
    code, _, err = hmas("engines", "drain", "gpu-9", "--reason", "r")
    assert code == 1
    assert "engine 'gpu-9' is not configured; engines: gpu-0, gpu-1" in err


def document(**parts):
    return {"version": 1, "author": "alice", "reason": "night", "expires": None, **parts}


def test_override_files(hmas, tmp_path):
    file = tmp_path / "night.json"
    file.write_text(json.dumps(document(policy={"name": "wfq"}, tenants={"team-a": {"weight": 3, "tokens_per_minute": 600}})))
    said = "night: ok, holds policy, tenants.team-a.weight, tenants.team-a.tokens_per_minute\n"
    assert hmas("override", "validate", str(file))[:2] == (0, said)
    assert of(hmas("override", "list", "--json"))["overrides"] == []
    code, out, _ = hmas("override", "apply", str(file))
    assert code == 0
    assert "policy wfq, team-a weight=3, team-a tokens_per_minute=600" in out
    (row,) = [line.split() for line in hmas("status")[1].splitlines() if line.startswith("team-a ")]
    assert row == ["team-a", "3", "600", "(600", "left)", "-", "-", "-", "-", "weight,", "tokens_per_minute"]
    assert of(hmas("policy", "show", "--json"))["name"] == "wfq"
    file.write_text(json.dumps(document(policy={"name": "fcfs"})))
    assert hmas("override", "apply", str(file), "--id", "zz")[0] == 0, "it wins: it was applied later"
    code, out, _ = hmas("override", "list")
    assert "conflict: policy: zz wins over night" in out
    assert of(hmas("override", "clear", "zz", "--json"))["removed"] == ["zz"]
    code, _, err = hmas("override", "clear", "zz")
    assert code == 1
    assert "there is no override 'zz'" in err
    assert hmas("override", "clear", "--all")[1] == "released: night\n"
    assert hmas("override", "clear", "--all")[1] == "released: nothing was held\n"


def test_an_override_whose_policy_does_not_take_over_the_queue_is_no_success(hmas, monkeypatch, tmp_path):
    file = tmp_path / "night.json"
    file.write_text(json.dumps(document(policy={"name": "wfq"})))
    monkeypatch.setattr(AdminClient, "policy", lambda _: {"name": DEFAULT_POLICY, "parameters": {}})
    code, out, err = hmas("override", "apply", str(file))
    assert (code, "policy wfq" in out) == (1, True)
    assert "wfq did not take over what waits, and is tried again" in err
    assert hmas("override", "clear", "night")[0] == 0


def test_a_change_that_another_override_wins_over_is_no_success(hmas, tmp_path):
    file = tmp_path / "night.json"
    parts = document(
        policy={"name": "edf"},
        knobs={"gpu-0": {"n_run": 3}},
        routers={"m": {"name": "default"}},
        engines={"gpu-1": {"drain": True}},
    )
    file.write_text(json.dumps(parts))
    assert hmas("override", "apply", str(file))[0] == 0
    for command, setting in (
        (["policy", "force", "fcfs"], "policy"),
        (["knobs", "set", "gpu-0", "--n-run", "2"], "knobs.gpu-0.n_run"),
        (["router", "force", "prefix-aware", "--model", "m"], "routers.m"),
        (["engines", "drain", "gpu-1"], ""),
    ):
        code, out, err = hmas(*command, "--reason", "r")
        assert code == (1 if setting else 0)
        assert (f"{setting}: the change is written, but the override `night` wins and stays" in err) == bool(setting)
        assert "ends it" in out
    code, out, _ = hmas("policy", "force", "fcfs", "--reason", "r", "--json")
    assert (code, json.loads(out)["name"], json.loads(out)["won_by"]) == (1, "edf", {"policy": "night"})
    assert hmas("policy", "force", "edf", "--reason", "r")[0] == 0, "the same as what wins"
    for command, setting in (
        (["engines", "undrain", "gpu-1"], "engines.gpu-1.drain"),
        (["policy", "release"], "policy"),
        (["knobs", "release", "gpu-0"], "knobs.gpu-0"),
        (["router", "release", "--model", "m"], "routers.m"),
    ):
        code, out, err = hmas(*command, "--json")
        assert (code, json.loads(out)["released"], json.loads(out)["won_by"]) == (1, True, {setting: "night"})
        assert "`hmas override clear night` ends that" in err
    file.write_text(json.dumps(document(policy={"name": "sjf"})))
    code, out, err = hmas("override", "apply", str(file), "--id", "aa", "--json")
    assert (code, json.loads(out)["won_by"]) == (1, {"policy": "night"})
    assert "policy: the change is written, but the override `night` wins and stays" in err


def test_the_bounds_on_what_a_tenant_has_waiting_are_shown(hmas, tmp_path):
    file = tmp_path / "night.json"
    limits = {"max_queued": 10, "max_body_bytes_waiting": 1 << 20, "tokens_per_minute": 600, "burst_tokens": 900}
    file.write_text(json.dumps(document(tenants={"team-b": limits})))
    assert hmas("override", "apply", str(file))[0] == 0
    (row,) = [line for line in hmas("status")[1].splitlines() if line.startswith("team-b ")]
    assert "10 requests, bodies of 1,048,576 bytes" in row
    assert "900 at once" in row


def test_an_override_that_this_gateway_cannot_apply(hmas, tmp_path):
    file = tmp_path / "night.json"
    file.write_text(json.dumps(document(engines={"gpu-9": {"drain": True}}, policy={"name": "fcfs"})))
    assert hmas("override", "validate", str(file), "--here")[0] == 0
    for command in ("validate", "apply"):
        code, out, err = hmas("override", command, str(file))
        assert (code, out) == (1, "")
        assert "$.engines.gpu-9: no such instance; allowed: gpu-0, gpu-1" in err
    code, out, _ = hmas("override", "validate", str(file), "--json")
    assert code == 1
    assert json.loads(out)["valid"] is False
    assert of(hmas("policy", "show", "--json"))["name"] == DEFAULT_POLICY


def test_a_broken_file_in_the_directory_is_shown(hmas, installation):
    folder = installation.state_dir / "overrides"
    folder.mkdir(exist_ok=True)
    (folder / "half.json").write_text('{"version": 1,')
    try:
        deadline = time.monotonic() + 10
        while "refused" not in (out := hmas("override", "list")[1]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "refused: half.json: half: not JSON, or only half written" in out
        _, out, _ = hmas("doctor", "--json")
        found = [check for check in json.loads(out)["checks"] if check["name"].startswith(("gateway", "engine", "clock"))]
        assert {check["state"] for check in found} == {"OK"}
    finally:
        (folder / "half.json").unlink()


def test_events(hmas):
    hmas("policy", "force", "sjf", "--reason", "for the events")
    hmas("policy", "release")
    code, out, _ = hmas("events", "--limit", "20")
    assert code == 0
    assert f"operator: policy policy: {DEFAULT_POLICY}" in out
    assert "for the events" in out
    events = of(hmas("events", "--json", "--limit", "3"))
    assert len(events) == 3
    assert events == sorted(events, key=lambda event: event["sent_s"])
