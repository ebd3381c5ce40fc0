"""Meta's decisions at the gateway: kept, joined with their outcomes, found again, and shown by the operators' API and the CLI."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from gateway_kit import eventually, running

from hmas.cli.decisions import listing, page
from hmas.cli.main import cli
from hmas.controller.core.messages import OPEN_WINDOW, CandidateOutlook, ControlAction, DecisionOutcome, MetaDecision
from hmas.controller.observability.decision_log import KEPT, DecisionLog


def decision(number: int, **fields: Any) -> MetaDecision:
    known: dict[str, Any] = {
        "sent_s": 100.0 + number,
        "decision_id": f"meta-abc-{number}",
        "policy": "edf",
        "previous": "edf",
        "reason": "fine",
    }
    return MetaDecision(**(known | fields))


def outcome(number: int, **fields: Any) -> DecisionOutcome:
    known: dict[str, Any] = {
        "sent_s": 200.0,
        "decision_id": f"meta-abc-{number}",
        "from_s": 100.0,
        "until_s": 160.0,
        "requests": 300,
        "good": 0.9,
    }
    return DecisionOutcome(**(known | fields))


def test_decisions_are_kept_with_their_outcomes_and_signs_of_life_are_not():
    log = DecisionLog()
    log.record(decision(1))
    log.record(decision(2, policy="sjf", changed=True, candidates=[CandidateOutlook(policy="sjf", good=0.8, gain=0.1, error=0.02)]))
    log.record(decision(3, repeats="meta-abc-2"))
    log.record(outcome(2, best="two-lane", best_good=0.93, chosen_good=0.9))
    log.record(outcome(99))
    assert [one["decision_id"] for one in log.newest(10)] == ["meta-abc-1", "meta-abc-2"]
    assert [one["decision_id"] for one in log.newest(10, changes=True)] == ["meta-abc-2"]
    told = log.newest(1)[0]
    assert told["outcome"]["good"] == 0.9
    assert abs(told["outcome"]["regret"] - 0.03) < 1e-9
    assert told["candidates"][0]["name"] == "sjf"
    log.record(decision(2, policy="sjf", changed=True))
    assert len(log.newest(10)) == 2, "what is delivered twice counts once"


def test_the_router_that_meta_chose_is_told_of_decisions_and_candidates():
    log = DecisionLog()
    log.record(decision(1))
    log.record(decision(2, router="default", changed=True, candidates=[CandidateOutlook(policy="edf", router="default", good=0.8)]))
    (told,) = log.newest(1)
    assert (told["before"], told["in_force"], told["candidates"][0]["name"]) == ("edf", "edf, router default", "edf, router default")
    assert "edf -> edf, router default" in page(told)


def test_what_was_active_before_is_told_with_its_parameters():
    log = DecisionLog()
    log.record(decision(1, policy="edf"))
    log.record(decision(2, policy="robust-edf", previous="edf", parameters={"output_weight": 5.0}, changed=True))
    log.record(decision(3, policy="robust-edf", previous="robust-edf", changed=True))
    log.record(decision(4, policy="robust-edf", previous="robust-edf"))
    assert [(one["before"], one["in_force"]) for one in log.newest(3)] == [
        ("edf", "robust-edf(output_weight=5)"),
        ("robust-edf(output_weight=5)", "robust-edf"),
        ("robust-edf", "robust-edf"),
    ]
    last, changed = page(log.newest(1)[0]), page(log.newest(2)[0])
    assert "in force  robust-edf, unchanged" in last
    assert "in force  robust-edf(output_weight=5) -> robust-edf" in changed


def test_reasons_are_whole_and_a_gain_without_evidence_has_no_error():
    log, reason = DecisionLog(), "630 requests replayed under 3 candidates: " + "none is expected to do better, " * 9 + "which was the end"
    log.record(decision(1, reason=reason, candidates=[CandidateOutlook(policy="sjf", good=0.7, gain=0.02, error=1.0)]))
    assert reason in listing(log.newest(1), changes=False)
    assert "+2.0, too few replays" in page(log.newest(1)[0])
    assert "100.0" not in page(log.newest(1)[0])


def test_a_decision_is_found_by_its_id_its_number_or_the_end_of_its_id():
    log = DecisionLog()
    for number in (1, 11, 21):
        log.record(decision(number))
    log.record(decision(5, decision_id="meta-abd-11", reason="after a restart"))

    def ids(given: str) -> list[str]:
        return [one["decision_id"] for one in log.find(given)]

    assert ids("meta-abc-11") == ["meta-abc-11"]
    assert ids("1") == ["meta-abc-1"], "its number, though others end so"
    assert ids("11") == ["meta-abd-11"], "the newest of that number"
    assert ids("abc-11") == ["meta-abc-11"]
    assert ids("-11") == ["meta-abc-11", "meta-abd-11"], "as many as it may mean"
    assert ids("nothing") == []


def test_memory_is_bounded():
    log = DecisionLog()
    for number in range(3 * KEPT):
        log.record(decision(number))
        log.record(outcome(number))
    assert len(log.newest(10 * KEPT)) == KEPT
    assert all(one["outcome"] for one in log.newest(10 * KEPT))


async def test_operators_see_decisions_over_the_api_and_the_cli(tmp_path: Path):
    def invoke(url: str, *words: str) -> Result:
        return CliRunner(env={"HMAS_STATE_DIR": str(tmp_path)}).invoke(cli, ["decisions", *words, "--admin", url])

    async with running(tmp_path) as rig:
        none = await asyncio.to_thread(invoke, rig.admin_url)
        candidates = [
            CandidateOutlook(policy="sjf", good=0.8, gain=0.1, error=0.02),
            CandidateOutlook(policy="edf", n_run=OPEN_WINDOW, good=0.7),
        ]
        said = decision(7, sent_s=rig.gateway.clock.now_s(), policy="sjf", changed=True, source="twin", candidates=candidates)
        rig.bus.post(said)
        rig.bus.post(outcome(7, best="edf, window open", best_good=0.95, chosen_good=0.9, expected=0.8))
        await eventually(lambda: rig.gateway.scheduler.policy == "sjf" and rig.gateway.decisions.newest(1)[0]["outcome"])
        every = await asyncio.to_thread(invoke, rig.admin_url)
        one = await asyncio.to_thread(invoke, rig.admin_url, "explain", "abc-7")
        as_json = await asyncio.to_thread(invoke, rig.admin_url, "--json", "--changes")
        rig.bus.post(decision(8, decision_id="meta-abd-7"))
        await eventually(lambda: len(rig.gateway.decisions.newest(9)) == 2)
        several = await rig.admin("GET", "/admin/decisions/-7")
        elsewhere = CliRunner().invoke(cli, ["decisions", "--admin", "http://127.0.0.1:9", "explain", "7"])
        unknown = await rig.admin("GET", "/admin/decisions/nothing")
        refused = await rig.admin("GET", "/admin/decisions?limit=0")
    assert "meta has not decided anything yet" in none.output
    assert (every.exit_code, one.exit_code) == (0, 0), (every.exception, one.exception)
    assert "meta-abc-7" in every.output
    assert "* sjf" in every.output
    good = "90.0 % of those settled good (300 ended), expected 80.0 %"
    for words in ("edf -> sjf", "edf, window open", "+10.0 ± 2.0", good, "regret 5.0 points"):
        assert words in one.output, (words, one.output)
    assert orjson.loads(as_json.stdout)[0]["outcome"]["regret"] == pytest.approx(0.05)
    assert (unknown.status, refused.status) == (404, 400)
    assert "hmas decisions" in unknown.json["error"]["message"]
    assert "may be any of 2, the newest of them meta-abc-7, meta-abd-7" in several.json["error"]["message"]
    assert elsewhere.exit_code == 2
    assert "--admin stands before explain; allowed: after it" in elsewhere.output


def test_a_span_in_which_nothing_ended_is_not_told_as_a_failure():
    log = DecisionLog()
    log.record(decision(1))
    log.record(outcome(1, requests=0, good=0.0))
    (told,) = log.newest(1)
    assert "no request ended in its window" in page(told)
    assert "0.0 %" not in page(told)


async def test_a_window_that_meta_holds_goes_before_stateras_and_after_an_operators(tmp_path: Path):
    async with running(tmp_path) as rig:
        ceiling = rig.gateway.fleet.ceilings["sim-1"].n_run
        now_s = rig.gateway.clock.now_s()
        rig.bus.post(ControlAction(sent_s=now_s, instance="sim-1", n_run=3))
        await eventually(lambda: rig.gateway.control.directives.instances["sim-1"].controls.n_run == 3)
        rig.bus.post(decision(1, sent_s=now_s, n_run=OPEN_WINDOW, changed=True, reason="wide"))
        await eventually(lambda: rig.gateway.control.directives.instances["sim-1"].controls.n_run == ceiling)
        held = rig.gateway.control.directives.instances["sim-1"].n_run
        assert (held.source, held.reason) == ("meta", "wide")
        await rig.admin("POST", "/admin/knobs", {"instance": "sim-1", "n_run": 2})
        assert rig.gateway.control.directives.instances["sim-1"].controls.n_run == 2
        await rig.admin("DELETE", "/admin/knobs?instance=sim-1")
        rig.bus.post(decision(2, sent_s=rig.gateway.clock.now_s()))
        await eventually(lambda: rig.gateway.control.directives.instances["sim-1"].controls.n_run == 3)
        rig.bus.post(decision(3, sent_s=rig.gateway.clock.now_s(), n_run=-1))
        await eventually(lambda: rig.events("agent.rejected"))
    assert "n_run is -1" in rig.events("agent.rejected")[0]["reason"]
