"""The change-point selector and its table: when it looks up, what it finds, and what is said of a table that cannot be used."""

import json
from typing import Any

import pytest
from control_kit import long_view
from hmas_lab.meta.change_point import ChangePointSelector, Level, make_change_point
from hmas_lab.meta.features import FEATURES, SHORT_LIST, features_of
from hmas_lab.meta.regimes import ROWS_MOST, SHIPPED, Row, look_up, read_table, write_table
from typing_kit import of_type

from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.make import SELECTORS, make_meta
from hmas.agents.meta.selectors.base import Situation
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.messages import MetaDecision
from hmas.controller.core.messages.views import ChangePoint
from hmas.controller.scheduling.policies.registry import POLICIES

EDF, SJF = Candidate(policy="edf"), Candidate(policy="sjf")
LATE = Row(when={"late_service": (0.4, None), "total_cv": (None, 2.0)}, policy="sjf", parameters={"aging_ms_per_s": 5.0})
UNFAIR = Row(when={"fairness": (None, 0.7)}, policy="wfq")


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setitem(SELECTORS, "change-point", make_change_point)


def situation(now_s: float, view=None, **changes) -> Situation:
    values: dict[str, Any] = {"current": EDF, "start": EDF, "allowed": tuple(sorted(POLICIES)), "since_s": 0.0, "now_s": now_s}
    return Situation(view=view or long_view(now_s), **(values | changes))


def test_the_first_regime_that_holds_is_taken():
    seen = dict.fromkeys(FEATURES, 0.0) | {"late_service": 0.4, "fairness": 0.5, "total_cv": 2.0}
    assert look_up([LATE, UNFAIR], seen) is LATE
    assert look_up([LATE, UNFAIR], seen | {"total_cv": 2.01}) is UNFAIR
    assert look_up([LATE], seen | {"late_service": 0.39}) is None


def test_features_are_finite_whatever_the_view_holds():
    broken = long_view(0.0, total_cv=float("nan"), arrival_rps=0.0, queued=10**9, mismatch=float("inf"), burst_ratio=-5.0)
    row = features_of(broken, "two-lane")
    assert len(row) == len(FEATURES)
    assert all(abs(value) <= 1e6 for value in row)
    assert row[FEATURES.index("runs_two-lane")] == 1.0
    assert sum(row[-len(SHORT_LIST) :]) == 1.0


def test_it_looks_up_after_a_change_and_keeps_to_it_else():
    selector = ChangePointSelector([LATE])
    assert selector.propose(situation(10.0)).candidate == EDF
    for step in range(2, 8):
        assert selector.propose(situation(10.0 * step)).candidate == EDF
    # The figures cross the row's edge, but nothing has changed: a wandering figure is no regime.
    crossed = long_view(90.0, late_service=0.5)
    assert selector.propose(situation(90.0, crossed)).candidate == EDF
    change = ChangePoint(figure="arrival_rps", at_s=80.0, found_s=95.0, before=10.0, after=30.0)
    after = long_view(100.0, late_service=0.5, changes=[change])
    said = selector.propose(situation(100.0, after))
    assert said.candidate == Candidate(policy="sjf", parameters={"aging_ms_per_s": 5.0})
    assert "arrival_rps changed from 10 to 30" in said.reason
    # Until the view is of the new regime alone it is looked up anew, then it stands.
    settled = long_view(155.0, late_service=0.1, changes=[change])
    assert selector.propose(situation(155.0, settled)).candidate == EDF
    later = long_view(170.0, late_service=0.9)
    assert selector.propose(situation(170.0, later)).candidate == EDF


def test_a_fleet_that_loses_speed_is_a_change_too():
    selector = ChangePointSelector([LATE])
    for step in range(12):
        selector.propose(situation(10.0 * step))
    for step in range(12, 20):
        slow = long_view(10.0 * step, violation_rate=0.5, late_service=0.6)
        said = selector.propose(situation(10.0 * step, slow))
        if said.candidate.policy == "sjf":
            break
    assert said.candidate.policy == "sjf"
    assert step <= 14
    assert "the share of misses changed" in said.reason


@pytest.mark.parametrize(
    ("shares", "alarms"), [([0.05, 0.08, 0.03, 0.06] * 50, 0), ([0.05] * 20 + [0.5] * 20, 1), ([0.02] * 10 + [0.3] * 9 + [0.02] * 9, 2)]
)
def test_the_level_of_misses_changes_only_where_it_does(shares, alarms):
    level = Level()
    assert sum(level.observe(share) for share in shares) == alarms


def test_what_was_rolled_back_and_too_few_requests_leave_things_as_they_are():
    selector = ChangePointSelector([LATE])
    late = long_view(10.0, late_service=0.5)
    assert selector.propose(situation(10.0, long_view(10.0, late_service=0.5, ended=3), current=SJF)).candidate == SJF
    said = selector.propose(situation(10.0, late, allowed=("edf", "fcfs")))
    assert said.candidate == EDF
    assert "rolled back" in said.reason


def test_a_clock_that_goes_back_does_not_stop_it():
    selector = ChangePointSelector([LATE])
    selector.propose(situation(5000.0))
    assert selector.propose(situation(10.0, long_view(10.0, late_service=0.5))).candidate.policy == "sjf"


def test_the_shipped_table_can_be_read_and_names_its_reasons():
    """It may have no rows: then nothing that was simulated was better than the policy at start by enough to be told."""
    assert all(row.when and row.why for row in read_table())
    assert "hmas-lab train-meta" in json.loads(SHIPPED.read_bytes())["about"]


def test_a_table_that_was_written_is_read_as_it_was(tmp_path):
    write_table([LATE, UNFAIR], tmp_path / "t.json", "mine")
    assert read_table(tmp_path / "t.json") == [LATE, UNFAIR]


BAD = {
    "no json": ("{", "malformed|truncated"),
    "another member": ('{"rows": [], "more": 1}', "unknown field `more`"),
    "no rows": ("{}", "missing required field `rows`"),
    "not a range": ('{"rows": [{"when": {"total_cv": [1]}, "policy": "edf"}]}', r"\$\.rows\[0\]\.when"),
    "figure": ('{"rows": [{"when": {}, "policy": "edf"}, {"when": {"speed": [1, 2]}, "policy": "edf"}]}', "when has 'speed'; allowed: vi"),
    "order": ('{"rows": [{"when": {"total_cv": [2, 1]}, "policy": "edf"}]}', r"\$\.rows\[0\]\.when\.total_cv is \[2, 1\]; allowed"),
    "policy": ('{"rows": [{"when": {}, "policy": "magic"}]}', r"\$\.rows\[0\]: policy 'magic' is unknown; allowed: fcfs"),
    "parameter": (
        '{"rows": [{"when": {}, "policy": "sjf", "parameters": {"aging_ms_per_s": -1}}]}',
        r"rows\[0\]: parameter 'aging_ms_per_s'.* allowed",
    ),
    "many": (json.dumps({"rows": [{"when": {}, "policy": "edf"}] * (ROWS_MOST + 1)}), f"allowed: {ROWS_MOST}"),
    "large": (" " * (1 << 19), "more than"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_table_that_cannot_be_used_is_refused_by_its_path(name, tmp_path):
    text, words = BAD[name]
    path = tmp_path / "table.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as told:
        make_meta(Config(agents=AgentsConfig(meta_selector="change-point", meta_model=str(path))))
    assert str(path) in str(told.value)
    with pytest.raises(ConfigError, match="No such file"):
        read_table(tmp_path / "none.json")


def test_it_is_put_together_as_configured(tmp_path):
    write_table([Row(when={}, policy="fcfs")], tmp_path / "t.json", "")
    agents = AgentsConfig(meta_selector="change-point", meta_model=str(tmp_path / "t.json"), meta_judge=False, meta_period_s=5.0)
    meta = make_meta(Config(agents=agents))
    said = [word for step in range(8) for word in meta.on_view(long_view(5.0 * step), 5.0 * step)]
    assert of_type(MetaDecision, said[-1]).policy == "fcfs"
    assert of_type(MetaDecision, said[-1]).source == "change-point"


def test_a_table_of_ones_own_is_trusted_and_the_learnt_one_is_judged(tmp_path):
    write_table([Row(when={}, policy="fcfs")], tmp_path / "t.json", "")
    for table, follows in ((str(tmp_path / "t.json"), True), ("", False)):
        agents = AgentsConfig(meta_selector="change-point", meta_model=table, meta_judge=False, meta_period_s=5.0)
        meta = make_meta(Config(agents=agents))
        bad = {"violation_rate": 0.9, "ttft_violation_rate": 0.0}
        said = [word for step in range(8) for word in meta.on_view(long_view(5.0 * step, **bad), 5.0 * step)]
        assert any(of_type(MetaDecision, word).changed for word in said) is follows
        assert of_type(MetaDecision, said[-1]).source == "change-point"
