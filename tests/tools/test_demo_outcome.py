import json
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from hmas.controller.core.messages import ControlAction
from hmas.demo.calibration import Calibration, CapPoint, SweepPoint, Variant, run_virtual
from hmas.demo.live import Decision, LiveRun, Sample, broken_sums, decisions_of, sample_of
from hmas.demo.outcome import DemoResult, chosen_decisions, decision_line, document, headline, text_table
from hmas.demo.page import page
from hmas.demo.settings import DemoSettings, demo_arrivals
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.results import RunSummary, count_outcomes
from hmas.loadgen.score import score

SETTINGS = DemoSettings(periods=1, period_s=3.0)
KNEE = CapPoint(n_run=24, throughput_rps=20.0, tpot_ms=15.0)
CALIBRATION = Calibration(capacity_rps=25.0, mean_rps=21.0, knee=KNEE, slo_scale=0.36, curve=[KNEE])


def decision(at_s, kind="knobs.n_run", source="statera", reason="TPOT <pressure> & more"):
    return Decision(at_s=at_s, source=source, kind=kind, subject="engine-1", before="32", after="24", reason=reason)


@pytest.fixture(scope="module")
def result():
    arrivals = demo_arrivals(SETTINGS.workload(mean_rps=21.0, slo_scale=0.36), *load_mixture())
    runs = []
    for variant in (
        Variant(name="engine-default"),
        Variant(name="fcfs-best-cap", n_run=24),
        Variant(name="fcfs-best-cap-shed", n_run=24, overdue="shed"),
        Variant(name="hmas", policy="edf", overdue="demote", n_run=28),
    ):
        results, end_s = run_virtual(arrivals, SETTINGS.engine_profile(), variant, engines=2)
        ours = variant.name == "hmas"
        runs.append(
            LiveRun(
                variant=variant,
                score=score(results, warmup_s=SETTINGS.warmup_s, arrivals_end_s=SETTINGS.duration_s, run_end_s=end_s),
                summary=RunSummary(
                    started_s=0.0, elapsed_s=end_s, max_gap_s=0.01, cpu_s=1.0, output_tokens=1, outcomes=count_outcomes(results)
                ),
                results=results,
                samples=[
                    Sample(at_s=0.5 * i, queued=i, in_flight=20, n_run=48, token_budget=4096, policy="edf" if i < 5 else "sjf")
                    for i in range(9)
                ],
                decisions=[decision(0.1 * i) for i in range(100)] if ours else [],
                verdicts=[decision(2.0, kind="policy", source="meta/rules", reason="deadlines are missed")] if ours else [],
                actions=[ControlAction(sent_s=0.0, instance="engine-1", n_run=24)] * 40 if ours else [],
                status={},
                broken=[],
            )
        )
    sweep = [SweepPoint(n_run=n, overdue=o, goodput_rps=1.0, goodput_rate=0.5) for o in ("keep", "shed") for n in (8, 16)]
    return DemoResult(settings=SETTINGS, calibration=CALIBRATION, sweep=sweep, runs=runs, elapsed_s=88.0)


def test_document_has_the_published_fields(result):
    found = json.loads(json.dumps(document(result)))
    assert [run["name"] for run in found["runs"]] == ["engine-default", "fcfs-best-cap", "fcfs-best-cap-shed", "hmas"]
    for run in found["runs"]:
        for field in ("goodput_rps", "goodput_rate", "esg", "throughput_rps", "submitted", "completed", "rejected", "lost"):
            assert isinstance(run[field], (int, float)), field
        for field in ("ttft_ms", "tpot_ms"):
            assert set(run[field]) == {"p50", "p95", "p99"}
        assert run["per_class"]
        assert run["lost"] == 0
        assert run["submitted"] == run["completed"] + run["rejected"] + run["failed"] + run["lost"]
    assert len(found["decisions"]) == 101
    assert found["broken"] == []


def test_comparison_is_with_the_best_of_the_baselines(result):
    found = document(result)["comparison"]
    ours = result.run("hmas").score.goodput_rps
    best = max(run.score.goodput_rps for run in result.runs if run.variant.name != "hmas")
    assert found["over_strongest_baseline"] == pytest.approx(ours / best, abs=1e-3)
    assert found["over_default"] == pytest.approx(ours / result.run("engine-default").score.goodput_rps, abs=1e-3)
    assert f"{ours / best:.2f} times the strongest baseline" in headline(result)


def test_loss_in_the_warmup_is_loss(result):
    run = result.run("hmas")
    summary = msgspec.structs.replace(run.summary, outcomes={**run.summary.outcomes, "lost": 2})
    changed = msgspec.structs.replace(result, runs=[*result.runs[:3], msgspec.structs.replace(run, summary=summary)])
    assert document(changed)["runs"][3]["lost"] == 2


def test_a_demo_without_a_decision_is_broken(result):
    silent = msgspec.structs.replace(result.run("hmas"), decisions=[], verdicts=[], actions=[])
    changed = msgspec.structs.replace(result, runs=[*result.runs[:3], silent])
    assert changed.broken == ["hmas: no agent has decided anything"]
    assert result.broken == []


def test_table_has_a_row_per_run(result):
    lines = text_table(result.runs).splitlines()
    assert len(lines) == 5
    assert lines[0].split()[0] == "run"
    assert lines[4].startswith("hmas")
    assert "agents" in lines[4]


def test_policy_decisions_come_first_of_all(result):
    chosen = chosen_decisions(result.run("hmas"), 14)
    assert len(chosen) <= 14
    assert any(d.kind == "policy" for d in chosen)
    assert [d.at_s for d in chosen] == sorted(d.at_s for d in chosen)
    assert "deadlines are missed" in decision_line(next(d for d in chosen if d.kind == "policy"))


def test_what_is_kept_for_the_same_reason_is_told_once(result):
    def keep(at_s, reason):
        return Decision(at_s=at_s, source="meta/keep", kind="policy", subject="queue", before="edf", after="edf", reason=reason)

    verdicts = [
        keep(1, "3% miss"),
        keep(2, "4.5% miss"),
        keep(3, "too few"),
        keep(4, "5% miss"),
        decision(5, kind="policy", reason="5% miss"),
    ]
    run = msgspec.structs.replace(result.run("hmas"), verdicts=verdicts, decisions=[])
    assert [d.at_s for d in chosen_decisions(run, 20)] == [1, 3, 4, 5]


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.stack, self.links, self.text, self.tags = [], [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in {"meta", "br", "link", "img"}:
            self.stack.append(tag)
        self.links += [value for name, value in attrs if name in {"href", "src"}]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text.append(data)


def test_page_is_whole_and_needs_nothing_else(result):
    html = page(result)
    parsed = Page()
    parsed.feed(html)
    assert parsed.stack == []
    assert parsed.links == []
    assert "script" not in parsed.tags
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "$" not in "".join(parsed.text)
    assert html.count("<svg") == 6
    text = "".join(parsed.text)
    assert headline(result) in text
    assert "TPOT <pressure> & more" in text
    for run in result.runs:
        assert run.variant.name in text


def test_page_shows_what_broke(result):
    run = msgspec.structs.replace(result.run("hmas"), broken=["2 requests were lost"])
    changed = msgspec.structs.replace(result, runs=[*result.runs[:3], run])
    assert "hmas: 2 requests were lost" in page(changed)


STATUS: dict[str, Any] = {
    "queue": {"queued": 3},
    "policy": {"name": "edf"},
    "instances": [
        {"in_flight": 4, "n_run": {"value": 16}, "token_budget": {"value": None}},
        {"in_flight": 5, "n_run": {"value": 24}, "token_budget": {"value": 512}},
    ],
    "counts": {"arrived": 9, "queued": 0, "running": 0, "ended": {"completed": 8, "shed": 1}, "conserved": True},
}


def test_a_sample_sums_over_the_instances():
    assert sample_of(STATUS, 1.234) == Sample(at_s=1.23, queued=3, in_flight=9, n_run=40, token_budget=512, policy="edf")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"conserved": False}, "sums do not come out"),
        ({"arrived": 8}, "sums do not come out"),
        ({"arrived": 10, "queued": 1}, "counted 10 arrivals, the client sent 9"),
        ({"ended": {"completed": 8}, "running": 1}, "0 queued and 1 running requests are left"),
    ],
)
def test_sums_are_checked(changes, words):
    status = {**STATUS, "counts": {**STATUS["counts"], **changes}}
    found = broken_sums(status, 9)
    assert words in found
    assert bool(found) == bool(words)


def test_only_agents_decide():
    events = [
        {"sent_s": 10.5, "source": "statera", "kind": "knobs.n_run", "subject": "e", "before": "1", "after": "2", "reason": "r"},
        {"sent_s": 11.0, "source": "operator", "kind": "policy", "subject": "queue"},
        {"sent_s": 12.0, "source": "gateway", "kind": "engine.up", "subject": "e"},
    ]
    assert [d.source for d in decisions_of(events, 10.0)] == ["statera"]
    assert decisions_of(events, 10.0)[0].at_s == 0.5
