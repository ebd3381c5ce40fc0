"""The live ablation without an engine: its load, who takes part in which run, what stands in for the two agents, and its figures."""

import asyncio
import gzip
import json

import msgspec
import pytest
from hmas_lab.agents.asked import read_pool
from hmas_lab.agents.beliefs import Believer
from hmas_lab.agents.live import LONG_TOKENS, PROMPT_TOKENS, STEERING, TWIN, PromptLoad, cast_of, live_summary
from hmas_lab.agents.makers import make_believer
from hmas_lab.agents.tables import live_table, live_verdict
from hmas_lab.agents.teller import StubAgents, read_truths, write_truths
from hmas_lab.demo_vllm.settings import FieldSettings
from message_kit import completed, instance_view, system_snapshot
from typing_kit import of_type

from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.core.messages import COSTS, FEATURES, RequestCost, RequestFeatures
from hmas.controller.core.types import TaskType
from hmas.controller.runtime.clock import SystemClock
from hmas.demo.calibration import Variant
from hmas.demo.settings import DemoSettings
from hmas.demo.site import MODEL, make_site, running_engines, running_gateway
from hmas.loadgen.dataset import load_mixture

SETTINGS = FieldSettings(length_scale=0.25, backlog=30, period_s=4.0)
PIECE = {"mean_rps": 5.0, "duration_s": 20.0, "slo_scale": 0.5}


@pytest.fixture
def load(tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    texts = [("QA", f"Question {n}: who built the harbour?", 40 + n) for n in range(30)] + [("QA", "word " * 4000, 10)]
    rows = [
        {"id": str(n), "prompt": text, "task_type": task, "output_tokens": tokens, "output_origin": "llm:m", "source": "made"}
        for n, (task, text, tokens) in enumerate(texts)
    ]
    with gzip.open(folder / "typed_prompts.jsonl.gz", "wt") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in rows)
    with gzip.open(folder / "multi_model_prompts.jsonl.gz", "wt"):
        pass
    with gzip.open(folder / "multi_model_output_lengths.csv.gz", "wt") as handle:
        handle.write("dataset,prompt_id,model,output_chars,output_tokens\n")
    return PromptLoad(read_pool(tmp_path, lambda _row: True), load_mixture()[0], SETTINGS, "tiny")


def test_the_load_sends_real_prompts_that_fit_with_answers_scaled(load):
    arrivals = load.piece(1, **PIECE)
    assert arrivals == load.piece(1, **PIECE)
    assert arrivals != load.piece(2, **PIECE)
    assert all(arrival.messages[0].content.startswith("Question") for arrival in arrivals)
    assert all(arrival.prompt_tokens <= PROMPT_TOKENS for arrival in arrivals)
    assert {arrival.output_tokens for arrival in arrivals} <= {round(0.25 * (40 + n)) for n in range(30)}
    assert {arrival.max_tokens for arrival in arrivals} == {SETTINGS.context_tokens // 4}
    assert all(
        arrival.size == ("long" if arrival.prompt_tokens + arrival.output_tokens >= LONG_TOKENS else "short") for arrival in arrivals
    )
    assert not any(arrival.declares for arrival in arrivals)
    assert len(load.backlog()) == 30
    assert all(arrival.at_s == 0.0 for arrival in load.backlog())


def test_truths_are_found_by_what_the_gateway_shows_of_a_prompt(load, tmp_path):
    known = load.truths(1, **PIECE)
    write_truths(tmp_path / "truths.json", known)
    again = read_truths(tmp_path / "truths.json")
    assert again == known
    for arrival in load.piece(1, **PIECE):
        truth = again[arrival.messages[0].content]
        assert (truth.task, truth.output_tokens, truth.slo) == (TaskType.QA, arrival.output_tokens, arrival.slo)


def test_every_arm_has_its_cast():
    assert cast_of("none", "t").agents == STEERING
    assert not cast_of("none", "t").beside
    assert set(cast_of("trained", "t").agents) > set(STEERING)
    assert cast_of(TWIN, "t") == cast_of("rules", "t")
    assert cast_of("oracle", "t.json").beside["teller"][-2:] == ["--truths", "t.json"]


def test_the_teller_answers_for_both_agents_and_learns(load):
    known = load.truths(1, **PIECE)
    teller = StubAgents(of_type(Believer, make_believer("oracle", lambda notice: known.get(notice.excerpt), 0.5)))
    snapshot = system_snapshot(instance_view("e", in_flight_tokens=50))
    notice = load.asked(1, **PIECE)[0].notice
    answers = teller.handle([snapshot, notice], 1.1)
    (features,) = (one for one in answers if isinstance(one, RequestFeatures))
    (cost,) = (one for one in answers if isinstance(one, RequestCost))
    truth = known[notice.excerpt]
    assert (features.task_type, features.output_tokens) == (truth.task, float(truth.output_tokens))
    assert cost.request_id == notice.request_id
    assert cost.ttft_ms["e"] > 0.0
    served = {"prompt_tokens": 10, "output_tokens": 12, "service_ttft_ms": 50.0, "tpot_ms": 20.0, "total_ms": 300.0}
    ended = completed(notice.request_id, sent_s=2.0, arrival_s=1.0, instance="e", **served)
    assert teller.handle([ended], 2.0) == []


def block(number, goodput, rejected=()):
    runs = {
        name: {
            "goodput_rps": value,
            "esg_rate": 100.0 * value,
            "ttft_ms_started": {"p95": 900.0},
            "tpot_ms": {"p95": 50.0},
            "broken": [],
        }
        for name, value in goodput.items()
    }
    return {"number": number, "runs": runs, "rejected": dict.fromkeys(rejected, 1)}


def test_an_arm_is_better_only_beyond_what_two_runs_of_the_rules_differ_by():
    blocks = [
        block(n, {"none": 9.0, "rules": 10.0, TWIN: 10.2, "trained": 10.1 + 0.01 * n, "oracle": 12.0}, rejected=["none"]) for n in range(3)
    ]
    summary = live_summary(blocks)
    rows = {row["arm"]: row for row in summary["rows"]}
    verdicts = {name: row["goodput_rps"]["verdict"] for name, row in rows.items()}
    assert verdicts == {"none": "worse", "rules": "baseline", "trained": "within noise", "oracle": "better", TWIN: "baseline"}
    assert summary["noise"]["goodput_rps"] == pytest.approx(0.02)
    assert rows["oracle"]["goodput_rps"]["over_rules"]["median"] == pytest.approx(12.0 / 10.1, abs=1e-3)
    document = {"blocks": blocks, "summary": summary, "settings": {"load": 1.0, "length_scale": 0.25}}
    table = live_table(document)
    assert "runs rejected: 3" in table.title
    assert {row[0] for row in table.rows} == set(rows)
    assert "oracle: 1.188 x goodput (better)" in live_verdict(document)


@pytest.mark.slow
async def test_beside_a_real_gateway_the_oracle_tells_the_truth(load, tmp_path):
    truths = tmp_path / "truths.json"
    known = load.truths(1, **PIECE)
    write_truths(truths, known)
    notice = load.asked(1, **PIECE)[0].notice
    site = make_site(tmp_path / "site", load.tenants())
    clock = SystemClock()
    heard = []
    cast = cast_of("oracle", str(truths))
    async with (
        running_engines(site, DemoSettings()),
        running_gateway(site, Variant(name="run"), cast=cast, config={}) as address,
    ):
        bus = RedisBus(address.bus_url)
        await bus.start()
        async with asyncio.timeout(20.0):
            async for deliveries in bus.follow([FEATURES, COSTS], block_ms=100):
                heard += [delivery.message for delivery in deliveries]
                if any(isinstance(message, RequestCost) for message in heard):
                    break
                bus.post(msgspec.structs.replace(notice, model=MODEL, sent_s=clock.now_s()))
        await bus.close()
        assert not site.troubles
    features = next(message for message in heard if isinstance(message, RequestFeatures))
    truth = known[notice.excerpt]
    assert (features.source, features.task_type, features.output_tokens) == ("oracle", truth.task, float(truth.output_tokens))
    assert {path.stem for path in (tmp_path / "site").glob("*.log")} >= {"gateway", "teller", *STEERING}
    assert not (tmp_path / "site" / "perception.log").exists()
