"""`hmas up --preset paper`: the whole product serves by the paper's laws, in real processes over real sockets."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_cli_up import Up, get, until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]
QUICK = {
    "HMAS_AGENTS__META_PERIOD_S": "1",
    "HMAS_AGENTS__QOS_SHORT_WINDOW_S": "2",
    "HMAS_AGENTS__QOS_LONG_WINDOW_S": "10",
    "HMAS_AGENTS__SPARE_CPU_ONLY": "false",
}
"""Faster loops than those of the preset, so that a test sees meta decide within seconds."""
LAWS = {"paper-rules", "rollback", "bypass"}


def ask(url: str, model: str, number: int) -> int:
    """Status of one request with targets that this engine misses once a few requests run."""
    body = {
        "model": model,
        "max_tokens": 32,
        "stream": True,
        "messages": [{"role": "user", "content": f"Count to {number}."}],
        "sim": {"output_tokens": 32},
    }
    headers = {"content-type": "application/json", "x-slo-ttft-ms": "150", "x-slo-tpot-ms": "5"}
    request = urllib.request.Request(url + "/v1/chat/completions", data=json.dumps(body).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_papers_system_serves_and_its_laws_act(tmp_path):
    with Up(tmp_path, "--engine", "sim:demo-small", "--no-auth", "--preset", "paper", **QUICK) as up:
        doc = up.announced()
        assert doc["preset"] == "paper"
        state = json.loads(up.hmas("status", "--json")[1])
        assert state["config"]["preset"] == "paper"
        assert state["policy"]["name"] == "sjf"
        assert state["policy"]["parameters"] == {"aging_ms_per_s": 0.0}
        assert get(doc["gateway"] + "/ready")[0] == 200

        def by_algorithm_2():
            (instance,) = json.loads(up.hmas("knobs", "show", "--json")[1])["instances"]
            return "Algorithm 2" in json.dumps(instance)

        until(by_algorithm_2)

        model = doc["engines"][0]["models"][0]
        answers: set[int] = set()

        def changed():
            """One more wave of requests, more than the window that statera leaves, and what meta has changed by then."""
            with ThreadPoolExecutor(64) as clients:
                answers.update(clients.map(lambda number: ask(doc["gateway"], model, number), range(96)))
            return [one for one in decided(up) if one["changed"]]

        decisions = until(changed, 120.0)
        assert answers == {200}, "nothing is shed, and Eq. 2 lets every request in in the end"
        events = up.hmas("events", "--all", "--limit", "500")[1]
        assert "is above the band" in events, "statera took budget or window back"
        assert {one["source"] for one in decisions} <= LAWS, [one["reason"] for one in decisions]
        assert {one["policy"] for one in decisions} <= {"fcfs", "edf", "sjf", "two-lane", "wfq"}
        assert decisions[0]["before"].startswith("sjf")
        assert up.stop() == 0


def decided(up: Up) -> list:
    code, out = up.hmas("decisions", "--json", "--limit", "200")
    assert code == 0, out
    found = json.loads(out)
    return found if isinstance(found, list) else found["decisions"]
