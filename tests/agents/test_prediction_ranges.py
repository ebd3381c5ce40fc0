"""What the cost model saw in training bounds what it is shown: clipped, counted once a request, reported; older cards go without."""

import json
import shutil

import numpy as np
import pytest
from message_kit import instance_view, request_features, system_snapshot
from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest
from typing_kit import all_of_type, known

from hmas.agents.prediction import training
from hmas.agents.prediction.agent import make_agent
from hmas.agents.prediction.experience import Table
from hmas.agents.prediction.features import FEATURES
from hmas.agents.prediction.regressor import FEW, SHIPPED, load_regressor
from hmas.agents.runtime.work import Deferred
from hmas.cli.doctor import check_models
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.errors import ModelError
from hmas.controller.core.messages import ModelReport
from hmas.controller.observability.agent_metrics import ModelReports
from hmas.controller.runtime.clock import SystemClock


@pytest.fixture(scope="module")
def shipped():
    return load_regressor()


def with_ranges(tmp_path, ranges):
    """The shipped model with other ranges on its card; None for a card of before there were any."""
    folder = tmp_path / "cost"
    shutil.copytree(SHIPPED, folder)
    card = json.loads((folder / "card.json").read_text())
    del card["details"]["ranges"]
    if ranges is not None:
        card["details"]["ranges"] = ranges
    (folder / "card.json").write_text(json.dumps(card))
    return folder


def test_the_shipped_model_carries_the_ranges_of_the_rows_that_it_was_trained_on(shipped):
    assert tuple(shipped.ranges.bounds) == FEATURES
    rows, _ = shipped.replay
    assert (shipped.ranges.within(rows) == rows)[~np.isnan(rows)].all()
    low, high = shipped.ranges.bounds["log_prompt_tokens"]
    assert 0.0 < low < 3.0 < 8.0 < high < 12.0


def test_what_lies_outside_is_answered_as_at_the_bound(shipped, tmp_path):
    rows, names = shipped.replay
    whole = np.flatnonzero(~np.isnan(rows).any(axis=1))[:60]
    one = rows[whole[0]]
    narrow = load_regressor(with_ranges(tmp_path, {name: [float(value)] * 2 for name, value in zip(FEATURES, one, strict=True)}))
    same = names[whole].copy()
    same[:] = names[whole[0]]
    free = shipped.log_ratios(rows[whole], same)
    at_bound = narrow.log_ratios(one[None], same[:1])
    assert np.abs(free - at_bound).max() > 0.1, "other values than the bound lead elsewhere"
    assert at_bound == pytest.approx(shipped.log_ratios(one[None], same[:1]))
    # By the library, and tree by tree as few rows are.
    for count in (len(whole), FEW):
        assert narrow.log_ratios(rows[whole][:count], same[:count]) == pytest.approx(np.repeat(at_bound, count, axis=0))


def test_a_card_without_ranges_still_loads_and_clips_nothing(shipped, tmp_path):
    old = load_regressor(with_ranges(tmp_path, None))
    assert old.ranges is None
    rows, names = shipped.replay
    assert old.log_ratios(rows[:100], names[:100]) == pytest.approx(shipped.log_ratios(rows[:100], names[:100]))
    learnt = Table(rows[:400], names[:400], np.zeros((400, 2)))
    assert "ranges" not in training.refit(old, learnt)[0].card.details, "half of what a model saw is no range"


@pytest.mark.parametrize("ranges", [{"in_flight": [0, 1]}, {name: [2, 1] for name in FEATURES}, dict.fromkeys(FEATURES, "x")])
def test_ranges_that_are_none_are_refused(tmp_path, ranges):
    with pytest.raises(ModelError, match=r"card\.json.*ranges"):
        load_regressor(with_ranges(tmp_path, ranges))


def test_a_refit_widens_the_ranges_to_what_it_has_seen(shipped):
    rows, names = (part[:400].copy() for part in shipped.replay)
    rows[0, FEATURES.index("in_flight")] = 500.0
    fresh, _ = training.refit(shipped, Table(rows, names, np.zeros((400, 2))))
    bounds = known(fresh.ranges).bounds
    assert bounds == shipped.ranges.bounds | {"in_flight": (0.0, 500.0)}
    assert fresh.card.details["ranges"] == bounds


def ask(agent, *requests):
    said = agent.handle([*requests], 100.0)
    return said.finish(said.compute(), 100.0) if isinstance(said, Deferred) else said


def test_a_request_outside_is_counted_once_reported_and_said_by_metric_and_doctor(tmp_path):
    agent = make_agent(Config(state_dir=str(tmp_path)))
    now_s = SystemClock().now_s()
    ask(agent, system_snapshot(instance_view("a"), instance_view("b"), sent_s=100.0))
    assert len(ask(agent, request_features("usual", prompt_tokens=100), request_features("huge", prompt_tokens=10**6))) == 2
    (report,) = [message for message in agent.on_tick(now_s) if isinstance(message, ModelReport)]
    outside = {name: count for name, count in report.figures.items() if name.startswith("out_of_range/")}
    # One request, though there are two instances; its number of steps follows from its length.
    assert outside["out_of_range/cost/log_prompt_tokens"] == 1.0
    assert outside.keys() <= {f"out_of_range/cost/{name}" for name in FEATURES}
    assert max(outside.values()) == 1.0
    registry = CollectorRegistry()
    reports = ModelReports(SystemClock(), registry)
    assert reports.record(report)
    assert 'hmas_model_input_out_of_range_total{feature="log_prompt_tokens",model="cost"} 1.0' in generate_latest(registry).decode()
    (found,) = check_models([structs.asdict(report)])
    assert found.state == "WARN"
    assert "cost/log_prompt_tokens 1 times" in found.found


def test_a_window_wider_than_in_training_is_nothing_unlike(tmp_path):
    agent = make_agent(Config(state_dir=str(tmp_path)))
    ask(agent, system_snapshot(instance_view("a", n_run=1024), sent_s=100.0), request_features("usual", prompt_tokens=100))
    (report,) = all_of_type(ModelReport, agent.on_tick(101.0))
    assert report.requests == 1
    assert "out_of_range/cost/n_run" not in report.figures


def test_a_model_without_ranges_reports_none(tmp_path):
    folder = with_ranges(tmp_path, None)
    agent = make_agent(Config(state_dir=str(tmp_path), agents=AgentsConfig(prediction_model=str(folder))))
    ask(agent, system_snapshot(instance_view("a"), sent_s=100.0), request_features("huge", prompt_tokens=10**6))
    (report,) = all_of_type(ModelReport, agent.on_tick(101.0))
    assert (report.requests, report.fallback) == (1, "")
    assert not [name for name in report.figures if name.startswith("out_of_range/")]
