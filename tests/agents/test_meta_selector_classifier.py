"""The classifier as a selector: the shipped one, what it says when it is not sure, and folders that cannot be used."""

import json
import shutil

import pytest
from control_kit import long_view

from agents.meta.candidate import Candidate
from agents.meta.make import make_meta
from agents.meta.selectors.base import Situation
from agents.meta.selectors.classifier import FILE, SHIPPED, SURE, ClassifierSelector, load_classifier
from agents.meta.selectors.features import SHORT_LIST, features_of
from agents.models.card import CARD
from controller.config.schema import AgentsConfig, Config
from controller.core.errors import ModelError
from controller.scheduling.pool import POLICIES

EDF = Candidate(policy="edf")


class Says:
    """Probabilities that are fixed."""

    def __init__(self, **said: float) -> None:
        self._said = {name.replace("_", "-"): share for name, share in said.items()}

    def probabilities(self, row):
        return self._said


def situation(view=None, **changes) -> Situation:
    values = {"current": EDF, "start": EDF, "allowed": tuple(sorted(POLICIES)), "since_s": 0.0, "now_s": 100.0}
    return Situation(view=view or long_view(100.0), **(values | changes))


def test_the_likeliest_policy_is_proposed_where_it_is_likely_enough():
    said = ClassifierSelector(Says(edf=0.3, two_lane=0.7)).propose(situation())
    assert (said.candidate, said.confidence, said.source) == (Candidate(policy="two-lane"), 0.7, "classifier")
    unsure = ClassifierSelector(Says(edf=0.3, two_lane=SURE - 0.01, sjf=0.2)).propose(situation())
    assert unsure.candidate == EDF
    assert "keep" in unsure.reason
    sjf = Candidate(policy="sjf", hints={"aging_ms_per_s": 1.0}, n_run=8)
    assert ClassifierSelector(Says(sjf=0.9, edf=0.1)).propose(situation(current=sjf)).candidate == sjf, "with the hints that it has"


def test_what_may_not_be_proposed_and_too_few_requests():
    selector = ClassifierSelector(Says(edf=0.3, two_lane=0.7))
    assert selector.propose(situation(allowed=("edf", "sjf"))).candidate == EDF
    assert selector.propose(situation(allowed=("lottery",), current=Candidate(policy="lottery"))).candidate.policy == "lottery"
    assert selector.propose(situation(long_view(100.0, ended=5))).confidence == 0.0


def test_the_shipped_classifier_is_small_and_says_what_it_is_worth():
    classifier = load_classifier()
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 200_000
    assert classifier.card.command.startswith("hmas train meta")
    assert set(classifier.card.metrics["held_out"]) >= {"classifier", "table", "rules", "always red"}
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


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(ModelError, match=r"card\.json"):
        load_classifier(tmp_path)
    with pytest.raises(ModelError, match="kind 'prediction'"):
        load_classifier(changed(tmp_path / "a", kind="prediction"))
    with pytest.raises(ModelError, match="trained on other features; train it again: hmas train meta"):
        load_classifier(changed(tmp_path / "b", details={"features": ["x"]}))
    folder = changed(tmp_path / "c")
    (folder / FILE).write_bytes(b"no model")
    with pytest.raises(ModelError, match="sha256"):
        load_classifier(folder)


def test_it_is_put_together_as_configured(tmp_path):
    config = Config(state_dir=str(tmp_path), agents=AgentsConfig(meta_selector="classifier", meta_period_s=5.0))
    said = [word for step in range(8) for word in make_meta(config).on_view(long_view(5.0 * step), 5.0 * step)]
    assert said[-1].source == "classifier"
    own = changed(tmp_path)
    make_meta(Config(state_dir=str(tmp_path), agents=AgentsConfig(meta_selector="classifier", meta_model=str(own))))
    with pytest.raises(ModelError):
        make_meta(Config(agents=AgentsConfig(meta_selector="classifier", meta_model=str(tmp_path / "none"))))
