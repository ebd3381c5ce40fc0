"""The live comparison's method, with the engine model in virtual time in the engine's place."""

import json
from collections import Counter

import msgspec
import pytest
from hmas_lab.onvllm.running import seconds_of
from hmas_lab.onvllm.tenants import BURSTING, LONG_SHARE, STEADY, TENANTS, SharedLoad
from hmas_lab.policies.live import contest
from hmas_lab.policies.live_figures import summary
from hmas_lab.policies.settings import BASELINE, LATE, TWIN, live_settings
from hmas_lab.policies.tables import live_table, live_verdict
from onvllm_kit import SMALL, TRACE, Engine, document_of, small
from typing_kit import of_type

from hmas.demo.site import DemoBroken
from hmas.loadgen.dataset import load_mixture

POLICIES = (BASELINE, "edf", "sjf")


def settings(blocks=2):
    return small(live_settings(POLICIES, seconds=4.0, blocks=blocks, load=1.0, seed=3))


async def study(engine, blocks=2):
    chosen = settings(blocks)
    document = await document_of(contest(chosen), engine)
    return document | {"summary": summary(document["blocks"], chosen.policies)}


async def test_blocks_hold_every_policy_and_the_baseline_twice_on_the_same_arrivals():
    engine = Engine()
    document = await study(engine)
    assert json.loads(json.dumps(document)) == json.loads(json.dumps(await study(Engine())))
    assert document["complete"]
    assert engine.with_agents == []
    for block in document["blocks"]:
        assert sorted(block["order"]) == sorted([*POLICIES, TWIN])
        assert set(block["runs"]) == set(block["order"])
        assert block["capacity_rps"] > 0
        mine = [(v, a) for v, a in engine.variants if v.name.startswith(f"block-{block['number']}-")]
        assert len({str(arrivals) for _, arrivals in mine}) == 1
        assert {(v.n_run, v.overdue) for v, _ in mine} == {(document["window"], LATE)}
        assert Counter(v.policy for v, _ in mine) == {BASELINE: 2, "edf": 1, "sjf": 1}
    first, second = document["blocks"]
    assert first["order"] != second["order"]
    assert first["arrivals"] > 20
    assert document["window"] in of_type(tuple, SMALL["sweep_caps"])


async def test_two_runs_of_the_baseline_are_the_same_without_noise_and_every_other_is_judged_by_that():
    document = await study(Engine(), blocks=3)
    found = document["summary"]
    assert found["noise"] == 0.0
    rows = {row["policy"]: row for row in found["rows"]}
    assert rows[BASELINE]["over_baseline"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert rows[TWIN]["goodput_rps"] == rows[BASELINE]["goodput_rps"]
    assert {rows[name]["runs"] for name in rows} == {3}
    for name in ("edf", "sjf"):
        ratio = rows[name]["over_baseline"]
        sides = {"better": ratio["min"] > 1.0, "worse": ratio["max"] < 1.0, "within noise": ratio["min"] <= 1.0 <= ratio["max"]}
        assert sides[rows[name]["verdict"]]
        assert len(rows[name]["ratios"]) == 3
        assert set(rows[name]["tenants"]) == set(TENANTS)
    assert [row[0] for row in live_table(document).rows] == sorted(rows, key=lambda name: -rows[name]["over_baseline"]["median"])
    assert all(name in live_verdict(document) for name in ("edf", "sjf"))


async def test_without_a_second_run_of_the_baseline_nothing_tells_the_noise_so_nothing_is_better():
    document = await study(Engine({f"block-{number}-{TWIN}": 99 for number in (1, 2, 3)}), blocks=3)
    assert document["summary"]["noise"] is None
    assert {row["verdict"] for row in document["summary"]["rows"] if row["policy"] not in {BASELINE, TWIN}} == {"within noise"}


async def test_a_spoilt_run_is_made_again_and_left_out_where_that_does_not_help():
    document = await study(Engine({"block-1-edf": 1, "block-1-sjf": 99, f"block-1-{TWIN}": 99}), blocks=1)
    block = document["blocks"][0]
    assert block["rejected"] == {"edf": 1, "sjf": 3, TWIN: 3}
    assert set(block["runs"]) == {BASELINE, "edf"}
    found = document["summary"]
    rows = {row["policy"]: row for row in found["rows"]}
    assert (rows["sjf"]["runs"], rows["sjf"]["rejected"]) == (0, 3)
    assert rows["sjf"]["goodput_rate"] is None
    assert found["noise"] is None
    assert rows["edf"]["verdict"] == "too few runs"
    assert "ordering buys no goodput" in live_verdict(document)
    assert "runs rejected: 7" in live_table(document).title


async def test_an_engine_that_serves_nothing_is_told():
    class Dead(Engine):
        async def __call__(self, variant, arrivals, span, *, agents=False):
            run = await super().__call__(variant, arrivals, span)
            return msgspec.structs.replace(run, results=[msgspec.structs.replace(r, outcome="failed") for r in run.results])

    with pytest.raises(DemoBroken, match="only 0 of 60 requests completed"):
        await study(Dead())


def test_one_tenant_makes_the_bursts_and_the_others_keep_their_pace():
    field = settings().field
    load = SharedLoad(TRACE, field, *load_mixture())
    arrivals = load.piece(1, mean_rps=60.0, duration_s=20.0, slo_scale=1.0)
    assert [a.tenant for a in arrivals] == [a.tenant for a in load.piece(1, mean_rps=60.0, duration_s=20.0, slo_scale=1.0)]
    half_s = field.period_s / 2.0
    high = [a for a in arrivals if int(a.at_s / half_s) % 2 == 0]
    low = [a for a in arrivals if int(a.at_s / half_s) % 2 == 1]
    counts = Counter(a.tenant for a in high), Counter(a.tenant for a in low)
    assert BURSTING not in counts[1]
    assert counts[0][BURSTING] == pytest.approx(0.6 * len(arrivals), rel=0.1)
    for tenant in STEADY:
        assert counts[0][tenant] == pytest.approx(counts[1][tenant], rel=0.35)
    long = sum(a.size == "long" for a in arrivals) / len(arrivals)
    assert long == pytest.approx(LONG_SHARE, abs=0.08)
    assert min(a.prompt_tokens + a.output_tokens for a in arrivals if a.size == "long") >= load.long_from_tokens
    assert {a.tenant for a in load.backlog()} == set(TENANTS)


def test_runs_score_whole_periods_of_the_seconds_that_were_asked_for():
    for seconds, periods in ((4.0, 1), (20.0, 1), (32.0, 2), (60.0, 4)):
        field = live_settings(POLICIES, seconds=seconds, blocks=1, load=1.0, seed=1).field
        span = field.run_span
        assert (field.periods, span.duration_s - span.warmup_s) == (periods, pytest.approx(seconds))


def test_the_expected_time_grows_with_policies_and_blocks():
    def total(policies, blocks):
        return sum(length for _, length in seconds_of(contest(live_settings(policies, seconds=32.0, blocks=blocks, load=1.0, seed=1))))

    assert total(POLICIES, 2) - total(POLICIES, 1) == pytest.approx(20.0 + 4 * 49.0)
    assert total(POLICIES, 1) > total(POLICIES[:2], 1)
