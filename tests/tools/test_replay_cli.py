import asyncio
import json
import threading

import msgspec
import pytest
from click.testing import CliRunner
from sim_faults import faulty_app

from hmas.cli.main import main
from hmas.cli.replay import replay
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile
from hmas.engines.sim.server import start
from hmas.loadgen.results import read_results

pytestmark = pytest.mark.slow

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{i:02d}.5000000,{100 + 20 * i},{5 + i}\n" for i in range(20)
)


class EngineThread:
    """An embedded engine on a loop of its own: the command under test runs one too."""

    def __init__(self, fault=None):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._runner, port = self._do(self._start(fault))
        self.url = f"http://127.0.0.1:{port}"

    async def _start(self, fault):
        model = EngineModel(msgspec.structs.replace(load_profile("demo-small"), step_ms=1.0, max_model_len=2048))
        return await start(faulty_app(model, "demo", "sim-1", fault), grace_s=0.1)

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def close(self):
        self._do(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def engine():
    thread = EngineThread()
    yield thread.url
    thread.close()


@pytest.fixture
def azure(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


def run(*arguments):
    return CliRunner().invoke(replay, [str(a) for a in arguments], catch_exceptions=False)


def test_azure_rows_are_replayed_and_scored(engine, azure, tmp_path):
    out = tmp_path / "results.jsonl"
    done = run("--trace", azure, "--url", engine, "--rate", 40, "--slo-scale", 100, "--out", out)
    assert done.exit_code == 0, done.output
    assert "20 requests read as azure" in done.stderr
    assert "goodput rate" in done.stdout
    assert "(20 of 20)" in done.stdout
    results = read_results(out)
    assert [r.output_tokens for r in results] == [5 + i for i in range(20)], "the embedded engine is told the recorded lengths"
    assert results[-1].at_s == pytest.approx(19 / 40)


def test_one_request_alone_at_a_drawn_time(engine, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "one question"}]}\n')
    done = run("--trace", path, "--url", engine, "--rate", 2, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["submitted"] == 1


def test_json_is_one_document(engine, azure):
    done = run("--trace", azure, "--url", engine, "--speed", 40, "--limit", 10, "--json")
    found = json.loads(done.stdout)
    assert found["submitted"] == 10
    assert found["lost"] == 0
    assert set(found["ttft_ms"]) == {"p50", "p95", "p99"}


def test_rates_are_over_the_time_in_which_requests_come(engine, azure):
    five = json.loads(run("--trace", azure, "--url", engine, "--rate", 40, "--limit", 5, "--slo-scale", 100, "--json").stdout)
    assert five["goodput_rps"] == pytest.approx(40.0)
    one = json.loads(run("--trace", azure, "--url", engine, "--rate", 40, "--limit", 1, "--slo-scale", 100, "--json").stdout)
    assert 0.0 < one["goodput_rps"] < 1000.0, "it comes at once: the time of the run counts"


def test_bad_rows_stop_it_unless_skipped(engine, azure):
    azure.write_text(AZURE + "2023-11-16 18:16:00,oops,5\n")
    assert main(["replay", "--trace", str(azure), "--url", engine, "--rate", "40"]) == 2
    done = run("--trace", azure, "--url", engine, "--rate", 40, "--skip-bad", "--json")
    assert json.loads(done.stdout)["skipped"] == 1


def test_long_requests_are_cut_to_what_the_engine_says(engine, azure):
    azure.write_text(AZURE + "2023-11-16 18:15:30,9000,5\n")
    done = run("--trace", azure, "--url", engine, "--rate", 40)
    assert done.exit_code == 0, done.output
    assert "1 of 21 requests are cut to the context of 2048 tokens" in done.stderr


def test_lost_requests_give_exit_code_1(azure):
    thread = EngineThread("reset-after:3")
    try:
        done = run("--trace", azure, "--url", thread.url, "--rate", 40, "--limit", 4)
    finally:
        thread.close()
    assert done.exit_code == 1
    assert "4 requests were lost, the first: number 0" in done.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--model", "other"], 1, "model 'other' is not served; allowed: demo"),
        (["--rate", "4", "--speed", "2"], 2, "either a speed above 0 or a rate above 0"),
        (["--kind", "poems"], 2, "kind is 'poems'"),
        (["--rate", "40", "--warmup", "9"], 2, "--warmup 9: allowed: at most"),
    ],
)
def test_mistakes_are_named(engine, azure, capsys, options, code, words):
    assert main(["replay", "--trace", str(azure), "--url", engine, *options]) == code
    assert words in capsys.readouterr().err


def test_nobody_at_the_address(azure, capsys):
    assert main(["replay", "--trace", str(azure), "--url", "http://127.0.0.1:9"]) == 1
    assert "nothing answers" in capsys.readouterr().err
