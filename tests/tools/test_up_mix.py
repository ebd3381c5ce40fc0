"""What the agents' views say of the mix of requests is what perception has read, also of requests that were sent on before it answered."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_cli_up import Up, until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(180)]
ASKED = (
    "Translate the following sentence to French: the bridge over the river was closed for repairs number {}.",
    "Write a Python function that returns the {}th prime number, with tests.",
    "Summarize this article number {} in three sentences: the bridge was closed in May, and traffic went through the old town.",
)
COUNT = 90


def ask(doc, number: int) -> int:
    """One chat; every third answer is one token long, and so ends as soon as it can."""
    body = {
        "model": doc["engines"][0]["models"][0],
        "max_tokens": 1 if number % 3 == 0 else 24,
        "messages": [{"role": "user", "content": ASKED[number // 3 % 3].format(number)}],
    }
    request = urllib.request.Request(
        doc["gateway"] + "/v1/chat/completions", data=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.status


def test_the_views_see_the_mix_that_perception_has_read(tmp_path):
    with Up(tmp_path, "--engine", "sim", "--engine", "sim", "--no-auth") as up:
        doc = up.announced()

        def perception():
            reports = json.loads(up.hmas("status", "--json")[1])["models"]
            return next((one for one in reports if one["agent"] == "perception"), None)

        until(perception)
        with ThreadPoolExecutor(12) as pool:
            assert set(pool.map(lambda number: ask(doc, number), range(COUNT))) == {200}

        def seen():
            long = json.loads(up.hmas("views", "--json")[1])["long"]
            return long if long is not None and long["ended"] >= COUNT else None

        long = until(seen)
        said = until(lambda: report if (report := perception())["requests"] >= COUNT else None)
        assert long["by_task"].get("unknown", 0.0) <= said["figures"]["unknown_share"] + 0.02
        assert up.stop() == 0
