"""The agents' reports about the quality of their models on live traffic, for operators and Prometheus. Every label is bounded."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import structs
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hmas.controller.core.lengths import LEVELS
from hmas.controller.core.messages import ModelReport
from hmas.controller.runtime.clock import Clock

AGENTS = ("perception", "prediction", "meta")
KEPT = 32
"""Most reports kept: one per agent, instance and role. The one without an update for the longest time is dropped first."""
FRESH_S = 60.0
"""Seconds without an update after which a report is no longer shown: its process is gone, or its model was replaced."""
NAME_LIMIT = 64

FIGURES: Mapping[str, tuple[str, str, float]] = MappingProxyType(
    {
        "unknown_share": ("hmas_agent_unknown_ratio", "Share of requests whose task type was left unknown, newest 2,000.", 1.0),
        "confidence": ("hmas_agent_confidence_ratio", "Mean confidence in the task type, newest 2,000.", 1.0),
        "pinball": ("hmas_agent_length_pinball", "Mean pinball loss of the log output length over all levels, newest 2,000.", 1.0),
        "median_ape": ("hmas_agent_length_error_ratio", "Median absolute error of the predicted length over the real one.", 1.0),
        "batch_size": ("hmas_agent_batch_requests", "Mean requests read at once.", 1.0),
        "inference_ms": ("hmas_agent_inference_seconds", "Mean inference time of one request, its share of the batch.", 0.001),
        "learnt": ("hmas_agent_learnt_requests", "Completions learnt from since the model was loaded.", 1.0),
        "ttft_ape": ("hmas_agent_ttft_error_ratio", "Median absolute error of the predicted TTFT over the real one.", 1.0),
        "tpot_ape": ("hmas_agent_tpot_error_ratio", "Median absolute error of the predicted TPOT over the real one.", 1.0),
        "gain": ("hmas_agent_shadow_gain_ratio", "By how much the error of the model in the shadow is lower.", 1.0),
        "evidence": ("hmas_agent_shadow_evidence", "Natural log of the evidence that it is better; 4.6 is 1 in 100.", 1.0),
        "agreement": ("hmas_agent_shadow_agreement_ratio", "Share of requests on whose task type both agree.", 1.0),
        "pairs": ("hmas_agent_shadow_requests", "Requests on which both were compared.", 1.0),
        "dropped": ("hmas_agent_shadow_dropped_requests", "Requests that the shadow was too busy to read.", 1.0),
    }
)
"""By the name in `ModelReport.figures`: metric, meaning, and factor to its unit."""
ENGINE_FIGURES = {"ttft_log_error": "ttft", "tpot_log_error": "tpot"}
"""Figures of one engine, named `NAME/ENGINE`, and their targets."""
ENGINES_SHOWN = 64
OUT_OF_RANGE = "out_of_range"
"""Figures named `out_of_range/MODEL/FEATURE`: inputs outside the range that the model was trained on, since it was loaded."""
FEATURES_SHOWN = 128
_LEVELS = frozenset(f"{level:g}" for level in LEVELS)


class ModelReports(Collector):
    """The newest report of each agent's instance and role."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._reports: OrderedDict[tuple[str, str, str], tuple[float, ModelReport]] = OrderedDict()
        registry.register(self)

    def record(self, report: ModelReport) -> bool:
        """Stores a report; returns False, and stores nothing, if the agent is unknown."""
        if report.agent not in AGENTS:
            return False
        kept = structs.replace(report, instance=report.instance[:NAME_LIMIT], model=report.model[:NAME_LIMIT])
        key = (kept.agent, kept.instance, kept.role)
        self._reports[key] = (self._clock.now_s(), kept)
        self._reports.move_to_end(key)
        while len(self._reports) > KEPT:
            self._reports.popitem(last=False)
        return True

    def fresh(self) -> list[ModelReport]:
        """The reports that are not too old, by agent, instance and role."""
        since_s = self._clock.now_s() - FRESH_S
        return [report for _, (received_s, report) in sorted(self._reports.items()) if received_s >= since_s]

    def documents(self) -> list[dict[str, Any]]:
        """The reports as JSON values, for operators."""
        now_s = self._clock.now_s()
        return [{**structs.asdict(report), "age_s": max(0.0, now_s - report.sent_s)} for report in self.fresh()]

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        labels = ["agent", "instance", "role"]
        info = GaugeMetricFamily("hmas_agent_model_info", "1 for the model at work.", labels=[*labels, "model"])
        fallback = GaugeMetricFamily("hmas_agent_model_fallback", "1 where another stands in for the configured model.", labels=labels)
        memory = GaugeMetricFamily("hmas_agent_memory_bytes", "Resident memory of the agent's process.", labels=labels[:2])
        answered = GaugeMetricFamily("hmas_agent_answered_requests", "Requests answered since the model was loaded.", labels=labels)
        coverage = GaugeMetricFamily(
            "hmas_agent_quantile_coverage_ratio",
            "Share of outcomes (perception: lengths; prediction: TTFT and TPOT) at or below the stated quantile; best is the level itself.",
            labels=[*labels, "level"],
        )
        figures = {name: GaugeMetricFamily(metric, meaning, labels=labels) for name, (metric, meaning, _) in FIGURES.items()}
        help_text = "Mean absolute log of actual over predicted, by engine and target."
        engines = GaugeMetricFamily("hmas_agent_prediction_log_error", help_text, labels=[*labels, "engine", "target"])
        outside = CounterMetricFamily(
            "hmas_model_input_out_of_range",
            "Inputs of an agent's model outside of what it was trained on, cut to its range, since the model was loaded.",
            labels=["model", "feature"],
        )
        fresh = self.fresh()
        for (model, feature), count in _out_of_range(fresh).items():
            outside.add_metric([model, feature], count)
        for report in fresh:
            own = [report.agent, report.instance, report.role]
            info.add_metric([*own, report.model], 1.0)
            fallback.add_metric(own, 1.0 if report.fallback else 0.0)
            answered.add_metric(own, float(report.requests))
            if report.role == "active":
                memory.add_metric(own[:2], float(report.rss_bytes))
            for level in sorted(_LEVELS & report.coverage.keys()):
                coverage.add_metric([*own, level], report.coverage[level])
            for name in FIGURES.keys() & report.figures.keys():
                figures[name].add_metric(own, report.figures[name] * FIGURES[name][2])
            for engine, target, value in _by_engine(report.figures):
                engines.add_metric([*own, engine, target], value)
        families = (info, fallback, memory, answered, coverage, outside, *figures.values(), engines)
        return [family for family in families if family.samples]


def _out_of_range(reports: Iterable[ModelReport]) -> dict[tuple[str, str], float]:
    """Out-of-range inputs by (model, feature), over all instances with used answers; features beyond the bound are left out."""
    found: dict[tuple[str, str], float] = {}
    for report in reports:
        for key, value in report.figures.items():
            what, _, rest = key.partition("/")
            model, _, feature = rest.partition("/")
            if what == OUT_OF_RANGE and feature and report.role == "active":
                place = (model[:NAME_LIMIT], feature[:NAME_LIMIT])
                if place in found or len(found) < FEATURES_SHOWN:
                    found[place] = found.get(place, 0.0) + value
    return found


def _by_engine(figures: Mapping[str, float]) -> list[tuple[str, str, float]]:
    """Figures of single engines as (engine, target, value), without unknown names and engines beyond the bound."""
    found = []
    for key, value in figures.items():
        name, _, engine = key.partition("/")
        if engine and name in ENGINE_FIGURES:
            found.append((engine[:NAME_LIMIT], ENGINE_FIGURES[name], value))
    return found[: len(ENGINE_FIGURES) * ENGINES_SHOWN]
