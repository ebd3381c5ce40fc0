import json
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from matplotlib.figure import Figure

from hmas.controller.core.messages import ControlAction, MetaDecision
from hmas.demo.calibration import Calibration, CapPoint, SweepPoint, Variant, run_virtual
from hmas.demo.decisions import decision_sentences
from hmas.demo.live import Decision, LiveRun, Sample, broken_sums, decisions_of, sample_of, verdicts_of
from hmas.demo.outcome import HEAD, DemoResult, document, headline, table_row, text_table, worse_figures
from hmas.demo.page import TTFT_SHOWN, _ttft, page
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
                summary=RunSummary(started_s=0.0, elapsed_s=end_s, max_gap_s=0.01, outcomes=count_outcomes(results)),
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


def test_decisions_are_told_by_kind_in_a_sentence_each(result):
    def verdict(at_s, before, after, reason):
        return Decision(at_s=at_s, source="meta/twin", kind="policy", subject="queue", before=before, after=after, reason=reason)

    def knob(at_s, before, after, subject="engine-1"):
        texts = [f"{value} (statera)" for value in (before, after)]
        return Decision(
            at_s=at_s, source="statera", kind="knobs.n_run", subject=subject, before=texts[0], after=texts[1], reason=f"TPOT at {at_s}"
        )

    verdicts = [
        verdict(1, "edf", "edf", "3% miss"),
        verdict(2, "edf", "edf", "4% miss"),
        verdict(3, "edf", "sjf", "9% miss"),
        verdict(4, "sjf", "sjf(tpot_guard=0.2)", "8% miss"),
    ]
    knobs = [knob(0.5, 64, 32), knob(1.5, 32, 48, "engine-2"), knob(2.5, 32, 16), knob(3.5, 16, 24)]
    run = msgspec.structs.replace(result.run("hmas"), verdicts=verdicts, decisions=knobs)
    assert decision_sentences(run) == [
        "Between 1.0 and 2.0 s meta looked at edf 2 times and kept it; the newest reason: 4% miss.",
        "At 3.0 s meta changed edf to sjf: 9% miss.",
        "At 4.0 s meta changed sjf to sjf(tpot_guard=0.2): 8% miss.",
        (
            "Between 0.5 and 3.5 s statera changed n_run of engine-1 3 times, from 64 (statera) to 24 (statera), "
            "between 16 and 32 meanwhile; the newest reason: TPOT at 3.5."
        ),
        "At 1.5 s statera set n_run of engine-2 from 32 (statera) to 48 (statera): TPOT at 1.5.",
    ]


def test_signs_of_life_are_no_decisions_and_parameters_are_told():
    def said(number, **fields):
        known = {"sent_s": 100.0 + number, "decision_id": f"m-{number}", "policy": "sjf", "previous": "sjf", "reason": f"r{number}"}
        return MetaDecision(**(known | fields))

    decisions = [said(1), said(2, repeats="m-1"), said(3, parameters={"tpot_guard": 0.2}, changed=True), said(4, changed=True)]
    assert [(d.before, d.after) for d in verdicts_of(decisions, 100.0)] == [
        ("sjf", "sjf"),
        ("sjf", "sjf(tpot_guard=0.2)"),
        ("sjf(tpot_guard=0.2)", "sjf"),
    ]


def test_what_it_is_worse_at_stands_beside_the_headline(result):
    slow = msgspec.structs.replace(result.run("hmas").score, throughput_rps=0.5, jain_tenants=0.25)
    run = msgspec.structs.replace(result.run("hmas"), score=slow)
    changed = msgspec.structs.replace(result, runs=[*result.runs[:3], run])
    found = worse_figures(changed)
    assert any(line.startswith("answers that ended while requests still arrived, per second: 0.50 against ") for line in found)
    assert any(line.startswith("Jain's index over the tenants: 0.250 against ") for line in found)
    html = page(changed)
    assert html.index('class="headline"') < html.index('class="worse"') < html.index("<h2>")
    assert f"Worse than {changed.strongest().variant.name}: " in html
    assert document(changed)["worse_figures"] == found


def test_the_page_defines_its_terms_and_gives_targets_in_ms(result):
    html = page(result)
    for term in ("ESG/s", "Jain", "SLO scale", "TTFT", "TPOT"):
        assert f"<dt>{term}</dt>" in html
    declared = [r.slo.ttft_ms for r in result.run("hmas").results if r.declared]
    assert f"TTFT {min(declared):.0f} to {max(declared):.0f} ms" in html
    assert "TTFT 2000 ms and TPOT 60 ms, in every run" in html


def test_the_table_fits_into_1280_pixels(result):
    rows = [table_row(run) for run in result.runs]
    # Head cells wrap between words; a figure of the page's 14 pixels is at most 8.5 pixels wide, and a cell has 14 pixels around it.
    widths = [max([*map(len, head.split()), *(len(str(row[place])) for row in rows)]) for place, head in enumerate(HEAD)]
    assert sum(8.5 * width + 14 for width in widths) <= 1280 - 2 * 16
    assert "max-width: 1240px" in page(result)


def test_the_ttft_chart_ends_at_a_multiple_of_the_target_and_not_at_the_latest_answer(result):
    results = [msgspec.structs.replace(r, ttft_ms=90_000.0) if place % 7 == 0 else r for place, r in enumerate(result.run("hmas").results)]
    run = msgspec.structs.replace(result.run("hmas"), results=results)
    axes = Figure().subplots()
    _ttft(axes, msgspec.structs.replace(result, runs=[*result.runs[:3], run]))
    assert axes.get_xlim() == (0.0, TTFT_SHOWN)
    assert axes.get_xlabel() == "TTFT over the request's own target"


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
