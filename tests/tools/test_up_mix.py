"""What the agents' views say of the mix of requests is what perception has read, also of requests that were sent on before it answered."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_cli_up import Up, until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(180)]
ASKED = {
    "Translation": "Translate the following sentence to French: the bridge over the river was closed for repairs number {}.",
    "CodeGeneration": "Write a Python function that returns the {}th prime number, with tests.",
    "Summarization": "Summarize article number {} in three sentences: the bridge was closed, and traffic went through the old town.",
}
COUNT = 90


def ask(doc, number: int) -> int:
    """One chat; every third answer is one token long and so ends as soon as it can: those of all translations."""
    body = {
        "model": doc["engines"][0]["models"][0],
        "max_tokens": 1 if number % 3 == 0 else 24,
        "messages": [{"role": "user", "content": [*ASKED.values()][number % 3].format(number)}],
    }
    request = urllib.request.Request(
        doc["gateway"] + "/v1/chat/completions", data=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.status


def longs(up):
    """The long view, once all requests that were sent have ended in it."""

    def seen():
        long = json.loads(up.hmas("views", "--json")[1])["long"]
        return long if long is not None and long["ended"] >= COUNT else None

    return until(seen)


def send_all(up):
    doc = up.announced()
    until(lambda: any(one["agent"] == "perception" for one in json.loads(up.hmas("status", "--json")[1])["models"]))
    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(lambda number: ask(doc, number), range(COUNT))) == {200}


def test_the_views_see_the_mix_that_perception_has_read(tmp_path):
    with Up(tmp_path, "--engine", "sim", "--engine", "sim", "--no-auth", HMAS_AGENTS__ASK="all") as up:
        send_all(up)
        mix = longs(up)["by_task"]
        assert all(mix.get(task, 0.0) > 0.25 for task in ASKED), mix
        assert up.stop() == 0


def test_the_views_see_the_mix_of_a_sample(tmp_path):
    with Up(tmp_path, "--engine", "sim", "--engine", "sim", "--no-auth") as up:
        send_all(up)
        mix = longs(up)["by_task"]
        assert sum(mix.get(task, 0.0) for task in ASKED) > 0.9, mix
        assert up.stop() == 0
