"""How agents' models do: heard from the bus, shown to operators and to Prometheus, bounded, and forgotten in silence."""

from pathlib import Path
from typing import Any

from gateway_kit import eventually, running
from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest

from hmas.cli.doctor import check_models
from hmas.cli.status import model_line, page
from hmas.controller.core.messages import ModelReport
from hmas.controller.observability.agent_metrics import FIGURES, FRESH_S, KEPT, ModelReports


class ManualClock:
    at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


def report(instance: str = "0", **changes) -> ModelReport:
    fields: dict[str, Any] = {
        "sent_s": 1000.0,
        "agent": "perception",
        "instance": instance,
        "model": "v3",
        "requests": 12,
        "scored": 10,
        "figures": {"unknown_share": 0.05, "median_ape": 0.4, "inference_ms": 0.25, "made_up": 1.0},
        "coverage": {"0.9": 0.88, "0.123": 0.5},
        "rss_bytes": 1 << 27,
    }
    return ModelReport(**(fields | changes))


def test_reports_are_shown_in_base_units_and_only_what_is_known():
    registry = CollectorRegistry()
    reports = ModelReports(ManualClock(), registry)
    assert reports.record(report())
    text = generate_latest(registry).decode()
    assert 'hmas_agent_model_info{agent="perception",instance="0",model="v3",role="active"} 1.0' in text
    assert 'hmas_agent_inference_seconds{agent="perception",instance="0",role="active"} 0.00025' in text
    assert 'hmas_agent_quantile_coverage_ratio{agent="perception",instance="0",level="0.9",role="active"} 0.88' in text
    assert 'hmas_agent_memory_bytes{agent="perception",instance="0"} 1.34217728e+08' in text
    assert "made_up" not in text
    assert "0.123" not in text


def test_inputs_outside_of_a_models_training_are_counted_over_all_instances():
    registry = CollectorRegistry()
    reports = ModelReports(ManualClock(), registry)
    figures = {"out_of_range/reader/log_turns": 3.0, "out_of_range/lengths/": 1.0, "out_of_range/": 1.0}
    reports.record(report("0", figures=figures))
    reports.record(report("1", figures=figures))
    reports.record(report("1", figures=figures, role="shadow"))
    text = generate_latest(registry).decode()
    assert 'hmas_model_input_out_of_range_total{feature="log_turns",model="reader"} 6.0' in text
    assert 'model="lengths"' not in text


def test_the_doctor_says_which_inputs_lie_outside():
    figures = {"out_of_range/reader/log_turns": 3.0, "out_of_range/reader/log_chars": 0.0}
    (found,) = check_models([structs.asdict(report(figures=figures)), structs.asdict(report(role="shadow", figures=figures))])
    assert (found.state, found.name) == ("WARN", "model v3 of perception 0")
    assert found.found == "of 12 requests outside of what it was trained on: reader/log_turns 3 times"
    (calm,) = check_models([structs.asdict(report())])
    assert calm.state == "OK"
    assert list(check_models([structs.asdict(report(requests=0))])) == []
    (meta,) = check_models([structs.asdict(report(agent="meta", figures={"out_of_range/classifier/fairness": 2.0}))])
    assert meta.found == "of 12 long views outside of what it was trained on: classifier/fairness 2 times"


def test_the_doctor_warns_of_a_model_that_stands_in():
    (found,) = check_models([structs.asdict(report(requests=0, fallback="drift, analytic formula for a/ttft"))])
    assert (found.state, found.found) == ("WARN", "STANDS IN for the configured one: drift, analytic formula for a/ttft")


def test_figures_of_single_engines_are_shown_by_engine_and_target():
    registry = CollectorRegistry()
    reports = ModelReports(ManualClock(), registry)
    figures = {"ttft_log_error/gpu-0": 0.2, "tpot_log_error/gpu-1": 0.91, "ttft_made_up/gpu-0": 1.0, "length_log_error/gpu-0": 2.0}
    reports.record(report(agent="prediction", figures=figures))
    text = generate_latest(registry).decode()
    whose = 'agent="prediction",engine="gpu-0",instance="0",role="active",target="ttft"'
    assert f"hmas_agent_prediction_log_error{{{whose}}} 0.2" in text
    assert 'engine="gpu-1",instance="0",role="active",target="tpot"} 0.91' in text
    assert "made_up" not in text
    assert 'target="length"' not in text


def test_labels_are_bounded_whoever_reports():
    registry = CollectorRegistry()
    reports = ModelReports(ManualClock(), registry)
    for number in range(KEPT + 10):
        reports.record(report(str(number) + "x" * 500, model="m" * 500))
    assert not reports.record(report(agent="oracle"))
    assert reports.record(report(agent="meta"))
    assert len(reports.fresh()) == KEPT
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert max(map(len, lines)) < 250
    assert len(lines) < KEPT * (len(FIGURES) + 12)


def test_a_report_that_is_not_renewed_is_forgotten():
    clock = ManualClock()
    reports = ModelReports(clock, CollectorRegistry())
    reports.record(report())
    reports.record(report(role="shadow", model="v4"))
    clock.at_s += FRESH_S - 1
    reports.record(report())
    assert [one["model"] for one in reports.documents()] == ["v3", "v4"]
    clock.at_s += 2
    assert [one["role"] for one in reports.documents()] == ["active"]


async def test_what_agents_report_reaches_status_and_metrics(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.bus.post(report(sent_s=rig.gateway.clock.now_s(), fallback="the file was changed"))
        await eventually(rig.gateway.model_reports.fresh)
        status = (await rig.admin("GET", "/admin/status")).json
        metrics = (await rig.get("/metrics")).body.decode()
    (shown,) = status["models"]
    assert (shown["agent"], shown["model"], shown["scored"]) == ("perception", "v3", 10)
    assert 0.0 <= shown["age_s"] < 10.0
    assert 'hmas_agent_model_fallback{agent="perception",instance="0",role="active"} 1.0' in metrics
    assert "model     perception 0: v3, STANDS IN: the file was changed, 12 answered since it was loaded, type unknown 5%" in page(status)


def test_a_shadow_says_how_it_compares():
    line = model_line(
        {"agent": "perception", "instance": "", "model": "v4", "role": "shadow", "figures": {"pairs": 400, "gain": -0.03, "evidence": 0.2}}
    )
    assert line == "perception: v4 in the shadow, 0 answered since it was loaded, error 3.0% higher on 400 (evidence 0.2 of 4.6)"
