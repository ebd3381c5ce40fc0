"""The classifier as a selector: the shipped one, what it says when it is not sure, and folders that cannot be used."""

import json
import shutil
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from control_kit import long_view
from hmas_lab.meta.classifier import FILE, SHIPPED, SURE, ClassifierSelector, PolicyClassifier, load_classifier, make_classifier
from hmas_lab.meta.features import FEATURES, SHORT_LIST, features_of
from typing_kit import known, of_type

from hmas.agents.meta.agent import REPORT_EVERY_S, make_agent
from hmas.agents.meta.candidate import Candidate
from hmas.agents.meta.make import SELECTORS, make_meta
from hmas.agents.meta.selectors.base import Situation
from hmas.agents.model_store.card import CARD
from hmas.controller.config.plugins import LAB
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.errors import ModelError
from hmas.controller.core.messages import MetaDecision, ModelReport
from hmas.controller.scheduling.policies.registry import POLICIES

EDF = Candidate(policy="edf")


class Says:
    """Probabilities that are fixed."""

    def __init__(self, **said: float) -> None:
        self._said = {name.replace("_", "-"): share for name, share in said.items()}

    def probabilities(self, row):
        return self._said


def says(**said: float) -> PolicyClassifier:
    return cast("PolicyClassifier", Says(**said))


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setitem(SELECTORS, "classifier", make_classifier)


def situation(view=None, **changes) -> Situation:
    values: dict[str, Any] = {"current": EDF, "start": EDF, "allowed": tuple(sorted(POLICIES)), "since_s": 0.0, "now_s": 100.0}
    return Situation(view=view or long_view(100.0), **(values | changes))


def test_the_likeliest_policy_is_proposed_where_it_is_likely_enough():
    said = ClassifierSelector(says(edf=0.3, two_lane=0.7)).propose(situation())
    assert (said.candidate, said.confidence, said.source) == (Candidate(policy="two-lane"), 0.7, "classifier")
    unsure = ClassifierSelector(says(edf=0.3, two_lane=SURE - 0.01, sjf=0.2)).propose(situation())
    assert unsure.candidate == EDF
    assert "keep" in unsure.reason
    sjf = Candidate(policy="sjf", parameters={"aging_ms_per_s": 1.0}, n_run=8)
    assert ClassifierSelector(says(sjf=0.9, edf=0.1)).propose(situation(current=sjf)).candidate == sjf, "with the parameters that it has"


def test_what_may_not_be_proposed_and_too_few_requests():
    selector = ClassifierSelector(says(edf=0.3, two_lane=0.7))
    assert selector.propose(situation(allowed=("edf", "sjf"))).candidate == EDF
    assert selector.propose(situation(allowed=("lottery",), current=Candidate(policy="lottery"))).candidate.policy == "lottery"
    assert selector.propose(situation(long_view(100.0, ended=5))).confidence == 0.0


def test_the_shipped_classifier_is_small_and_says_what_it_is_worth():
    classifier = load_classifier()
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 200_000
    assert classifier.card.command.startswith("hmas-lab train-meta")
    assert set(classifier.card.metrics["held_out"]) >= {"classifier", "table", "rules", "always robust-edf"}
    for view in (long_view(0.0), long_view(0.0, violation_rate=float("nan"), queued=10**9)):
        said = classifier.probabilities(features_of(view, "edf"))
        assert set(said) == set(SHORT_LIST)
        assert sum(said.values()) == pytest.approx(1.0)


def changed(tmp_path, **fields):
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    card = json.loads((folder / CARD).read_text()) | fields
    (folder / CARD).write_text(json.dumps(card))
    return folder


def ranged(tmp_path, view):
    """The shipped model as if training had seen nothing but one view, under edf."""
    row = features_of(view, "edf")
    details = json.loads((SHIPPED / CARD).read_text())["details"]
    return changed(tmp_path, details=details | {"ranges": {name: [value, value] for name, value in zip(FEATURES, row, strict=True)}})


def reports(said):
    return [message for message in said if isinstance(message, ModelReport)]


def test_what_lies_outside_of_its_training_is_answered_as_at_the_bound_and_counted(tmp_path):
    usual, other = long_view(0.0), long_view(0.0, violation_rate=0.9, late_service=0.8, queued=5_000)
    free, narrow = load_classifier(), load_classifier(ranged(tmp_path, usual))
    row, outside = features_of(usual, "edf"), features_of(other, "edf")
    assert free.probabilities(outside) != pytest.approx(free.probabilities(row), rel=0.1)
    assert narrow.probabilities(outside) == free.probabilities(row)
    assert known(narrow.ranges).out_of_range == {"violation_rate": 1, "late_service": 1, "log_queued_s": 1}
    assert narrow.probabilities(row) == free.probabilities(row)
    assert known(narrow.ranges).out_of_range["late_service"] == 1
    assert narrow.answered == 2


def test_the_agent_reports_on_its_model_every_few_seconds_and_on_no_other_selector(tmp_path):
    folder = ranged(tmp_path, long_view(0.0))
    agents = AgentsConfig(meta_selector="classifier", meta_model=str(folder), meta_period_s=5.0, meta_judge=False)
    agent = make_agent(Config(state_dir=str(tmp_path), agents=agents))
    views = [long_view(5.0 * step, late_service=0.8) for step in range(5)]
    found = reports(message for view in views for message in agent.handle([view], view.sent_s))
    assert [one.sent_s for one in found] == [0.0, REPORT_EVERY_S, 2 * REPORT_EVERY_S]
    assert (found[-1].agent, found[-1].model, found[-1].requests) == ("meta", "model", 5)
    assert found[-1].figures["out_of_range/classifier/late_service"] == 5.0
    rules = make_agent(Config(state_dir=str(tmp_path), agents=AgentsConfig(meta_selector="rules", meta_judge=False)))
    assert reports(rules.handle([long_view(0.0)], 0.0)) == []


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(ModelError, match=r"card\.json"):
        load_classifier(tmp_path)
    with pytest.raises(ModelError, match="kind 'prediction'"):
        load_classifier(changed(tmp_path / "a", kind="prediction"))
    with pytest.raises(ModelError, match="trained on other features; train it again: hmas-lab train-meta"):
        load_classifier(changed(tmp_path / "b", details={"features": ["x"]}))
    with pytest.raises(ModelError, match=r"card\.json: details\.ranges must name"):
        load_classifier(changed(tmp_path / "d", details={"features": list(FEATURES), "ranges": {"x": [0, 1]}}))
    folder = changed(tmp_path / "c")
    (folder / FILE).write_bytes(b"no model")
    with pytest.raises(ModelError, match="sha256"):
        load_classifier(folder)


def test_it_is_put_together_as_configured(tmp_path):
    config = Config(state_dir=str(tmp_path), agents=AgentsConfig(meta_selector="classifier", meta_period_s=5.0))
    said = [word for step in range(8) for word in make_meta(config).on_view(long_view(5.0 * step), 5.0 * step)]
    assert of_type(MetaDecision, said[-1]).source == "classifier"
    own = changed(tmp_path)
    make_meta(Config(state_dir=str(tmp_path), agents=AgentsConfig(meta_selector="classifier", meta_model=str(own))))
    with pytest.raises(ModelError):
        make_meta(Config(agents=AgentsConfig(meta_selector="classifier", meta_model=str(tmp_path / "none"))))


def test_what_the_lab_declares_can_be_imported_and_is_what_errors_say_of_it():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {group: tuple(points) for group, points in project.items()} == dict(LAB)
    for points in project.values():
        for value in points.values():
            module, _, attribute = value.partition(":")
            assert callable(getattr(import_module(module), attribute))
