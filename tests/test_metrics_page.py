"""docs/metrics.md: its table is what the product exports, and its alert rules are made of such metrics alone."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from hmas.controller.config.schema import Config
from hmas.controller.gateway.kv_events import service
from hmas.controller.observability import agent_metrics, defaults, metrics
from hmas.controller.observability.exporters import mqtt
from hmas.controller.observability.exporters.mqtt_outbox import Outbox
from hmas.controller.runtime.clock import SystemClock

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
KINDS = {
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Histogram": "histogram",
}
OTHER_NAMES = {"hmas_version"}
"""A field of an MQTT document."""


class _Fleet:
    def now_s(self) -> float:
        return 0.0


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    """The table's row of each metric that the product makes, by its name in the code."""
    found: dict[str, str] = {}

    def noted(make: Any, kind: str) -> Callable[..., Any]:
        def noting(name: str, documentation: str, *labels: Sequence[str], **rest: Any) -> Any:
            named = ",".join(labels[0] if labels else rest.get("labels", ()))
            shown = name + "_total" * (kind == "counter") + ("{" + named + "}" if named else "")
            found[name] = f"| `{shown}` | {kind} | {documentation} |"
            return make(name, documentation, *labels, **rest)

        return noting

    with pytest.MonkeyPatch.context() as patch:
        for module in (metrics, defaults, agent_metrics, service, mqtt):
            for made, kind in KINDS.items():
                if hasattr(module, made):
                    patch.setattr(module, made, noted(getattr(module, made), kind))
        registry = CollectorRegistry()
        metrics.Metrics()
        defaults.DispatchedOnDefaults((), registry)
        agent_metrics.ModelReports(SystemClock(), registry)
        fleet: Any = _Fleet()
        observer: Any = None
        events = service.KvEvents(Config(), fleet, observer, registry)
        mqtt.MqttExporter(Outbox(1), prefix="hmas", period_s=1.0).count(registry, lambda: True)
        list(registry.collect())
        events.close()
    return found


def test_every_metric_of_the_code_is_made_here(rows: dict[str, str]) -> None:
    named: set[str] = set()
    for path in (ROOT / "controller").rglob("*.py"):
        named |= set(re.findall(r'"(hmas_[a-z_]+)"', path.read_text(encoding="utf-8")))
    assert named - OTHER_NAMES == set(rows)


def test_the_table_is_what_is_exported(rows: dict[str, str]) -> None:
    table = [line for line in PAGE.splitlines() if line.startswith("| `hmas_")]
    assert table == list(rows.values()), "\n".join(["the table should be:", *rows.values()])


def test_the_alert_rules_use_metrics_of_the_table(rows: dict[str, str]) -> None:
    exported = {row.split("`")[1].split("{")[0] for row in rows.values()}
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    rules = [rule for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) == 7
    for rule in rules:
        used = set(_names(rule["expr"]))
        assert used, rule
        assert used <= exported | {"up"}, rule
        assert re.fullmatch(r"\d+[sm]", rule["for"]), rule
        assert rule["annotations"]["summary"], rule


def test_pages_name_only_metrics_that_are_exported(rows: dict[str, str]) -> None:
    exported = {row.split("`")[1].split("{")[0] for row in rows.values()}
    histograms = {row.split("`")[1].split("{")[0] for row in rows.values() if "| histogram |" in row}
    known = exported | {name + end for name in histograms for end in ("_bucket", "_sum", "_count")}
    wrong = [
        f"{path.name}: {name}"
        for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
        for name in re.findall(r"`(hmas_[a-z_]+[a-z])(?:\{[^`]*\})?`", path.read_text(encoding="utf-8"))
        if name not in known and not name.startswith(("hmas_engine_plugin", "hmas_control", "hmas_lab", "hmas_version"))
    ]
    assert wrong == []


def _names(expression: str) -> Iterator[str]:
    """The metrics of a PromQL expression: what stands before a selector, a range or a comparison and is no function or keyword."""
    bare = re.sub(r"\{[^}]*\}|\b(?:by|on|without)\s*\([^)]*\)", "", expression)
    yield from (word for word in re.findall(r"\b[a-z_]+\b(?!\s*\()", re.sub(r"\[\w+\]", "", bare)) if word not in {"and", "or", "unless"})
