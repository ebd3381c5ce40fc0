"""The live comparison: its arms and their configurations, its runs in virtual time, the figures of its blocks, its page."""

from typing import Literal

import pytest
from hmas_lab.live.figures import summary
from hmas_lab.live.settings import CAP, DEFAULT, FIXED, OURS, STRONG, TWIN, live_settings, read_fixed, variant_of
from hmas_lab.live.study import contest
from hmas_lab.live.tables import arms_table, body, controls_table, goals_table
from onvllm_kit import Engine, document_of, small

from hmas.controller.core.errors import ConfigError
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas.demo.calibration import Variant
from hmas.demo.site import GatewayAddress, Site, gateway_config

WINDOWS: dict[Literal["keep", "demote", "shed"], int] = {"keep": 24, "shed": 32}


def run(goodput: float, long: float = 0.5) -> dict:
    quantiles = {"p50": 1.0, "p95": 2.0, "p99": 3.0}
    return {
        "goodput_rps": goodput, "esg_rate": 10.0, "rejected": 1, "submitted": 10, "jain_tenants": 0.9, "ttft_ms_started": quantiles,
        "tpot_ms": quantiles, "ttft_compliance": 0.9, "tpot_compliance": 0.95,
        "per_class": {"conv-short": {"goodput_rate": 0.9}, "conv-long": {"goodput_rate": long}}, "broken": [],
    }  # fmt: skip


def block(number: int, **goodputs: float) -> dict:
    names = {DEFAULT: 5.0, CAP: 6.0, STRONG: 8.0, TWIN: 8.2, "fixed-edf": 9.0, "fixed-sjf": 7.0, OURS: 10.0}
    runs = {name: run(goodputs.get(name, goodput)) for name, goodput in names.items()}
    return {"number": number, "runs": runs, "rejected": {OURS: 1} if number == 1 else {}}


def document(blocks) -> dict:
    settings = {"field": {"load": 0.9, "high": 1.8, "low": 0.2}}
    return {"blocks": blocks, "windows": WINDOWS, "settings": settings, "summary": summary(blocks, [*block(0)["runs"]])}


def test_every_arm_has_the_configuration_that_its_name_says():
    found = {name: variant_of(name, WINDOWS, "b") for name in live_settings(("edf",), seconds=48.0, blocks=1, load=0.9, seed=1).names}
    assert (found[DEFAULT].policy, found[DEFAULT].n_run, found[DEFAULT].overdue) == ("fcfs", 0, "keep")
    assert (found[CAP].n_run, found[CAP].overdue) == (24, "keep")
    assert (found[STRONG].n_run, found[STRONG].overdue) == (32, "shed")
    assert found[TWIN] == found[STRONG].__class__(name="b-" + TWIN, n_run=32, overdue="shed")
    assert (found["fixed-edf"].policy, found["fixed-edf"].overdue, found["fixed-edf"].foresight) == ("edf", "demote", True)
    assert not found[STRONG].foresight


def test_a_fixed_policy_is_admitted_as_by_h_mas_and_a_baseline_is_not(tmp_path):
    site = Site(tmp_path, {"a": "key"})
    address = GatewayAddress("http://127.0.0.1:1", "http://127.0.0.1:2")
    plain = gateway_config(site, Variant(name="x"), address, tmp_path, {})["scheduler"]
    foreseeing = gateway_config(site, Variant(name="x", foresight=True), address, tmp_path, {})["scheduler"]
    assert (plain["fence"], plain["tpot_guard"]) == (False, 0.0)
    assert "fence" not in foreseeing


def test_fixed_policies_are_read_by_name():
    assert read_fixed("") == tuple(name for name in POLICIES if name in FIXED)
    assert read_fixed("all") == tuple(POLICIES)
    assert read_fixed("sjf, edf") == ("edf", "sjf")
    with pytest.raises(ConfigError, match="nonsense"):
        read_fixed("edf,nonsense")


def test_runs_are_told_by_ratios_within_their_block():
    found = summary([block(1), block(2, **{OURS: 12.0}), block(3, **{DEFAULT: 4.0})], [*block(0)["runs"]])
    rows = {row["arm"]: row for row in found["rows"]}
    assert rows[OURS]["over_default"]["median"] == 2.4
    assert rows[OURS]["over_strong"]["median"] == pytest.approx(10.0 / 8.1, abs=1e-3)
    assert rows[OURS]["verdict"] == "better"
    assert rows[STRONG]["verdict"] == "baseline"
    assert rows[OURS]["rejected"] == 1
    assert found["noise"] == pytest.approx(0.025)
    assert found["fixed_best"] == "fixed-edf"
    goals = {one["goal"]: one for one in found["goals"]}
    assert [one["reached"] for one in goals.values()] == [True, True, True, True]
    assert goals["long requests' goodput over that baseline's"]["found"]["median"] == 1.0


def test_a_goal_that_is_missed_is_told_so():
    blocks = [block(number, **{OURS: 8.0}) for number in (1, 2, 3)]
    goals = summary(blocks, [*block(0)["runs"]])["goals"]
    assert [one["reached"] for one in goals] == [True, False, True, False]


async def test_a_block_holds_every_arm_with_its_own_window_and_only_h_mas_has_its_agents():
    engine = Engine()
    settings = small(live_settings(("edf",), seconds=4.0, blocks=1, load=0.9, seed=5))
    found = await document_of(contest(settings), engine)
    (block,) = found["blocks"]
    assert sorted(block["order"]) == sorted(settings.names) == sorted(block["runs"])
    assert engine.with_agents == [f"block-1-{OURS}"]
    made = {variant.name.removeprefix("block-1-"): variant.n_run for variant, _ in engine.variants if variant.name.startswith("block-1-")}
    assert (made[CAP], made[STRONG], made[TWIN], made[DEFAULT]) == (found["windows"]["keep"], *[found["windows"]["shed"]] * 2, 0)
    assert [point["overdue"] for point in found["sweep"]] == ["keep", "keep", "shed", "shed"]
    assert [row["arm"] for row in found["summary"]["rows"]] == list(settings.names)
    assert found["complete"]


def test_tables_and_page_tell_all_arms_and_goals():
    found = document([block(1), block(2), block(3)])
    in_force = {"n_run": {"p10": 20.0, "p50": 32.0, "p90": 48.0}, "guard": {"p10": 0.8, "p50": 0.95, "p90": 1.0}}
    found["blocks"][1]["runs"][OURS]["controls"] = in_force
    arms, goals = arms_table(found), goals_table(found)
    assert [row[1:3] for row in controls_table(found).rows] == [("none", "none"), ("20, 32, 48", "0.80, 0.95, 1.00"), ("none", "none")]
    assert [row[0] for row in arms.rows][:2] == [OURS, "fixed-edf"]
    assert "2.5% apart" in arms.title
    assert len(goals.rows) == 4
    text = body(found)
    assert "| h-mas | 10.00 |" in text
    assert "engine's default" in text
