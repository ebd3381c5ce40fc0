"""`hmas profile` against engines that run: the embedded one, and ones that do not do as they should."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web
from sim_faults import faulty_app
from test_fitting import DECODES, PREFILLS
from typing_kit import known

from hmas.cli.main import main
from hmas.controller.runtime.ports import free_port
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import Profile, load_profile
from hmas.engines.sim.server import start
from hmas.profiling.coefficients import fit_coefficients
from hmas.profiling.design import Batch, Bounds, plan
from hmas.profiling.probe import Findings, probe
from hmas.profiling.target import ProbeError, Target, look_at

KNOWN = Profile(
    name="known",
    gpu="none",
    model="none",
    source="made up for the tests",
    step_ms=4.0,
    prefill_ms_per_token=0.06,
    prefill_ms_per_ktoken_sq=0.0,
    decode_ms_per_seq=0.25,
    decode_ms_per_kv_ktoken=0.5,
    block_size=16,
    kv_blocks=2048,
    kv_bytes_per_token=1024,
    max_num_seqs=16,
    max_num_batched_tokens=4096,
    max_model_len=2048,
)
SMALL = [Batch(kind="prefill", seqs=1, prompt_tokens=64, output_tokens=2), Batch(kind="decode", seqs=2, prompt_tokens=32, output_tokens=12)]


@asynccontextmanager
async def engine(profile=KNOWN, fault=None):
    app = faulty_app(EngineModel(profile), "tiny", "sim-1", fault)
    runner, port = await start(app, grace_s=0.1)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def served(**routes):
    app = web.Application()
    for path, answer in routes.items():

        async def handle(_request, answer=answer):
            status, body, kind = answer
            return web.Response(status=status, text=body, content_type=kind)

        app.router.add_route("*", "/" + path.replace("__", "/"), handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


MODELS = (200, json.dumps({"data": [{"id": "tiny", "max_model_len": 2048}]}), "application/json")


async def test_what_an_engine_says_of_itself():
    async with engine() as url:
        target = await look_at(url)
    assert (target.kind, target.model, target.root) == ("sim", "tiny", "none")
    assert (target.max_model_len, target.kv_tokens, target.block_size) == (2048, 2048 * 16, 16)
    assert (target.max_num_seqs, target.max_num_batched_tokens) == (16, 4096)


@pytest.mark.slow
@pytest.mark.long
async def test_known_coefficients_are_found_again():
    async with engine() as url:
        target = await look_at(url, model="tiny")
        bounds = Bounds(max_model_len=2048, kv_tokens=known(target.kv_tokens), max_num_seqs=16, concurrency=(1, 4, 8, 16), repeats=2)
        findings = await probe(target, plan(bounds))
    fit = fit_coefficients(findings.prefills, findings.decodes, tokens_per_step=4096)
    assert findings.sent == findings.planned
    # The clock of a busy machine is the limit: steps within 15 %, what is read off differences of steps within 30 %.
    assert fit.values["step_ms"] == pytest.approx(KNOWN.step_ms, rel=0.15)
    assert fit.values["decode_ms_per_seq"] == pytest.approx(KNOWN.decode_ms_per_seq, rel=0.3)
    assert fit.values["decode_ms_per_kv_ktoken"] == pytest.approx(KNOWN.decode_ms_per_kv_ktoken, rel=0.3)
    # A little of a prompt's linear cost may be taken for quadratic; together they have to be right.
    prompt_ms = fit.values["prefill_ms_per_token"] * 1000 + fit.values["prefill_ms_per_ktoken_sq"] * 1000 * 1001 / 2e6
    assert prompt_ms == pytest.approx(KNOWN.prefill_ms_per_token * 1000, rel=0.15)
    assert max(one.median for one in fit.misfits) < 0.15


@pytest.mark.slow
async def test_a_probe_stops_in_time_and_keeps_what_it_has():
    heard = []
    async with engine() as url:
        target = await look_at(url)
        findings = await probe(target, SMALL * 500, max_seconds=1.0, on_progress=lambda *said: heard.append(said))
    assert 0 < findings.sent < findings.planned == 1000
    assert findings.elapsed_s < 3.0
    assert heard[-1][:2] == (findings.sent, 1000)
    assert len(findings.prefills) >= findings.sent // 2


async def test_prompts_are_about_as_long_as_asked_and_never_alike():
    async with engine() as url:
        target = await look_at(url)
        findings = await probe(target, [SMALL[0]] * 3)
    lengths = [one.prompt_tokens for one in findings.prefills]
    assert all(50 <= length <= 80 for length in lengths[1:])


async def test_nobody_answers():
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ProbeError, match="nothing answers"):
        await look_at(url)


async def test_another_model_is_served():
    async with engine() as url:
        with pytest.raises(ProbeError, match="'large' is not served; allowed: tiny"):
            await look_at(url, model="large")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, '{"error": {"message": "key?"}}', "application/json"), "--api-key-env"),
        ((500, "oops", "text/plain"), "answers 500"),
        ((200, "<html>", "text/html"), "no JSON"),
        ((200, '{"data": []}', "application/json"), "lists no model"),
    ],
)
async def test_no_list_of_models(answer, words):
    async with served(v1__models=answer) as url:
        with pytest.raises(ProbeError, match=words):
            await look_at(url)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, "{}", "application/json"), "--api-key-env"),
        ((200, '{"choices": []}', "application/json"), "does not stream"),
        ((200, "data: [DONE]\n\n", "text/event-stream"), "no token"),
        ((200, 'data: {"error": {"message": "out of memory"}}\n\n', "text/event-stream"), "out of memory"),
        ((400, '{"error": {"message": "max_tokens is too large"}}', "application/json"), "max_tokens is too large"),
    ],
)
async def test_answers_that_cannot_be_measured(answer, words):
    async with served(v1__models=MODELS, v1__chat__completions=answer) as url:
        target = await look_at(url)
        assert target.kind == "openai"
        with pytest.raises(ProbeError, match=words):
            await probe(target, SMALL)


async def test_an_engine_that_breaks_off():
    async with engine(fault="reset-after:3") as url:
        target = await look_at(url)
        with pytest.raises(ProbeError, match="broke off"):
            await probe(target, SMALL[1:])


@pytest.fixture
def sim_process(tmp_path):
    path = tmp_path / "known.json"
    path.write_bytes(msgspec.json.encode(KNOWN))
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "hmas", "run", "engine", "--port", str(port), "--model", "tiny", "--profile", str(path)]
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
            break
        time.sleep(0.05)
    yield url
    process.terminate()
    process.communicate(timeout=20)


@pytest.mark.slow
def test_the_command_writes_a_profile_that_loads(tmp_path, capsys, sim_process):
    out = tmp_path / "found.json"
    options = ["--max-seconds", "20", "--concurrency", "1,4,8", "--repeats", "1", "--gpu", "a30", "--out", str(out), "--json"]
    assert main(["profile", sim_process, *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    made = load_profile(str(out))
    assert (made.name, made.gpu, made.kv_blocks) == ("found", "a30", KNOWN.kv_blocks)
    assert set(printed["fit"]) == {"TTFT", "TPOT"}
    assert "Error of the fit" in made.source
    # A process of its own is as exact as the machine is idle.
    assert made.step_ms == pytest.approx(KNOWN.step_ms, rel=0.4)


def test_the_command_says_what_is_wrong(capsys):
    assert main(["profile", f"http://127.0.0.1:{free_port()}"]) == 1
    assert "nothing answers" in capsys.readouterr().err
    for url in ("localhost:8000", "vllm", "http://h:port"):
        assert main(["profile", url]) == 1
        assert capsys.readouterr().err == f"hmas: address {url!r}; allowed: http://HOST:PORT\n"
    assert main(["profile", "http://x", "--concurrency", "4"]) == 2
    assert "2 or more numbers" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_costs_no_measurement(tmp_path, capsys, monkeypatch):
    async def look(url, **_):
        return Target(url=url, model="tiny", max_model_len=4096, kv_tokens=9000)

    measured = []

    async def measure(*_, **__):
        measured.append(1)
        return Findings(prefills=PREFILLS, decodes=DECODES, tokens=5, elapsed_s=2.0)

    monkeypatch.setattr("hmas.cli.profile.look_at", look)
    monkeypatch.setattr("hmas.cli.profile.probe", measure)
    out = tmp_path / "missing" / "x.json"
    assert main(["profile", "http://e", "--out", str(out)]) == 0
    assert load_profile(str(out)).name == "x"
    capsys.readouterr()

    assert main(["profile", "http://e", "--json", "--out", str(out / "below" / "y.json")]) == 2
    assert "y.json', which cannot be written: " in capsys.readouterr().err
    assert len(measured) == 1
