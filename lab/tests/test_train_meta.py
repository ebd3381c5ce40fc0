"""`hmas-lab train-meta`: what is drawn and simulated, what is learnt of it, and where it goes."""

import json

import msgspec
import numpy as np
import pytest
from hmas_lab.cli import main
from hmas_lab.meta.classifier import load_classifier
from hmas_lab.meta.draws import SEED, draw
from hmas_lab.meta.features import FEATURES, SHORT_LIST
from hmas_lab.meta.fitting import chooser, fit, held_out
from hmas_lab.meta.labels import START, Labelled, Seen, label
from hmas_lab.meta.regimes import look_up, read_table
from hmas_lab.meta.table import find_rows
from typing_kit import known

from hmas.agents.model_store.store import ModelStore

WORKLOADS = 60


def world(seed: int = 5) -> list[Labelled]:
    """Workloads of which those with late service are served best by shortest first; every other figure is noise."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(WORKLOADS):
        late = bool(rng.random() < 0.4)
        good = dict.fromkeys(SHORT_LIST, 0.5) | {START: 0.6, "sjf": 0.8 if late else 0.4}
        seen = []
        for current in SHORT_LIST:
            figures = rng.random(len(FEATURES))
            figures[FEATURES.index("late_service")] = rng.uniform(0.5, 1.0) if late else rng.uniform(0.0, 0.3)
            seen.append(Seen(current=current, rules=START, features=figures.round(4).tolist()))
        found.append(Labelled(drawn=draw(number), good=good, best="sjf" if late else START, seen=seen))
    return found


def test_draws_are_the_same_each_time_and_unlike_each_other():
    drawn = [draw(number) for number in range(50)]
    assert drawn == [draw(number) for number in range(50)]
    assert len(set(drawn)) == 50
    assert {one.kind for one in drawn} == {"poisson", "gamma", "burst", "drift"}
    assert {one.admission for one in drawn} == {"gateway", "open", "shed"}
    assert min(one.seed for one in drawn) > SEED
    assert draw(3, seed=1) != draw(3)


def test_what_can_be_learnt_is_learnt_and_measured_on_what_was_not_seen():
    labelled = world()
    found = held_out(labelled, 1)
    assert found["classifier"].accuracy > 0.85
    assert found["table"].accuracy > 0.85
    assert found["classifier"].regret < 0.03 < 0.07 < found[f"always {START}"].regret
    assert found["always sjf"].regret > 0.05
    rows = find_rows(labelled)
    assert rows[0].policy == "sjf"
    assert "late_service" in rows[0].when
    choose = chooser(fit(labelled, 1))
    assert choose(labelled[0].seen[0]) == labelled[0].best


def test_a_table_finds_nothing_where_nothing_is_to_be_found():
    rng = np.random.default_rng(0)
    noise = [msgspec.structs.replace(one, good={name: float(rng.normal(0.6, 0.01)) for name in SHORT_LIST}, best=START) for one in world()]
    assert find_rows(noise) == []


@pytest.mark.slow
def test_a_workload_is_simulated_under_every_policy():
    one = label(draw(0))
    assert set(one.good) == set(SHORT_LIST)
    assert one.best in SHORT_LIST
    assert {seen.current for seen in one.seen} == set(SHORT_LIST)
    assert all(len(seen.features) == len(FEATURES) for seen in one.seen)
    assert len({tuple(seen.features) for seen in one.seen}) > 5


def test_the_command_writes_a_folder_or_a_version(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b"\n".join(msgspec.json.encode(one) for one in world()) + b"\n")
    config = tmp_path / "hmas.yaml"
    config.write_text(f"state_dir: {tmp_path / 'state'}\n")
    common = ["train-meta", "--workloads", str(WORKLOADS), "--rows", str(rows)]
    table = tmp_path / "t" / "regimes.json"
    assert main([*common, "--out", str(tmp_path / "m"), "--table", str(table)]) == 0
    assert "lost against the best" in capsys.readouterr().out
    made = load_classifier(tmp_path / "m")
    assert made.card.metrics["workloads"] == WORKLOADS
    assert tuple(known(made.ranges).bounds) == FEATURES
    assert 0.9 < known(made.ranges).bounds["late_service"][1] <= 1.0
    late = dict.fromkeys(FEATURES, 0.5) | {"late_service": 0.9}
    found = look_up(read_table(table), late)
    assert found is not None
    assert found.policy == "sjf"
    assert main([*common, "--use", "--config", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "v1"
    assert ModelStore(tmp_path / "state" / "models").choice("meta").current == "v1"
    assert rows.read_bytes().count(b"\n") == WORKLOADS, "nothing was simulated again"
    rows.write_text("{}\n")
    assert main(common) != 0
    assert "a file that --rows has written" in capsys.readouterr().err
    assert main([*common, "--out", str(tmp_path / "m"), "--use"]) == 2
