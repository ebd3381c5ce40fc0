"""The ablation of perception and prediction on little: the truth decides what is good, beliefs decide what is done."""

import gzip
import json
from typing import cast

import msgspec
import pytest
from hmas_lab.agents import simulate
from hmas_lab.agents.asked import MAX_TOKENS, read_pool, write_without
from hmas_lab.agents.beliefs import Oracle
from hmas_lab.agents.makers import make_believer
from hmas_lab.agents.masking import masking
from hmas_lab.agents.page import write_page, write_paper_row
from hmas_lab.agents.requests import draw, truths
from hmas_lab.agents.rows import KeptRows
from hmas_lab.agents.run import run
from hmas_lab.agents.settings import WAYS, AblationSettings, read_beliefs, read_ways, way_of
from hmas_lab.agents.simulate import SimulatedAblation
from hmas_lab.agents.tables import masking_table, paper_table, simulated_tables, simulated_verdicts
from hmas_lab.cli import main
from typing_kit import known

from hmas.agents.prediction.model import PredictionModel
from hmas.controller.core.errors import ConfigError, TraceError
from hmas.controller.core.messages import Completion
from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import OutcomeKind, TaskType
from hmas.loadgen.arrivals import ArrivalSpec
from hmas.loadgen.dataset import load_mixture
from hmas.planning import StudyError
from hmas.planning.backends import on_cores
from hmas.planning.fleet import read_fleet

QA, LONG, MATH = TaskType.QA, TaskType.LONG_FORM_GENERATION, TaskType.MATH_REASONING
TEXTS = {
    QA: "Question: which river runs through the {} city of the far north? Answer in one word.",
    LONG: "Write a very long story of 2000 words about the {} lighthouse and everybody who ever lived in it.",
    MATH: "A farmer has {} hens and sells 3 of every 7. How many hens are left, and what is 12 % of that number?",
}
OUTPUTS = {QA: 12, LONG: 700, MATH: 120}
JOINED = "The {} story that several models have answered, word for word: write it again."


def row(task, text, tokens, origin="llm:m"):
    return {
        "id": f"{abs(hash(text)):x}",
        "prompt": text,
        "task_type": task.value,
        "output_tokens": tokens,
        "output_origin": origin,
        "source": "made",
        "license": "MIT",
    }


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as handle:
        handle.writelines(lines)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder of the public format, with prompts of three types."""
    folder = tmp_path_factory.mktemp("data")
    rows = [row(task, TEXTS[task].format(f"number {n}"), OUTPUTS[task] + n) for task in TEXTS for n in range(20)]
    rows += [row(QA, "What did a human answer to this?", 3, origin="human"), row(LONG, JOINED.format("old"), 5)]
    write(folder / "prompts/typed_prompts.jsonl.gz", [json.dumps(one) + "\n" for one in rows])
    several = {"dataset": "hellobench:main_exp:chat", "prompt_id": "h1", "prompt": JOINED.format("old"), "prompt_tokens": 9}
    write(folder / "prompts/multi_model_prompts.jsonl.gz", [json.dumps(several) + "\n"])
    lengths = [f"hellobench:main_exp:chat,h1,{model},9,{tokens}\n" for model, tokens in (("a", 300), ("b", 9_000))]
    write(folder / "prompts/multi_model_output_lengths.csv.gz", ["dataset,prompt_id,model,output_chars,output_tokens\n", *lengths])
    return folder


@pytest.fixture(scope="module")
def pool(data):
    return read_pool(data, lambda _row: True)


def stream(pool, rate=6.0, seed=1, scale=0.2):
    spec = ArrivalSpec(mean_rps=rate, duration_s=40.0)
    return draw(pool, load_mixture()[0], spec, seed=seed, slo_scale=scale, model=read_fleet("1xdemo-small").model())


def test_the_pool_holds_what_models_answered_and_every_model_s_length_where_it_is_known(pool):
    assert {task: len(found) for task, found in pool.prompts.items()} == {QA: 20, LONG: 21, MATH: 20}
    assert pool.models == ("a", "b")
    joined = next(prompt for prompt in pool.prompts[LONG] if prompt.text.startswith("The old"))
    assert (joined.answered_by("a", MAX_TOKENS), joined.answered_by("b", MAX_TOKENS)) == (300, MAX_TOKENS)
    assert pool.prompts[QA][0].answered_by("a", 100) == 12


def test_the_stream_is_the_same_again_and_every_prompt_comes_before_any_comes_twice(pool):
    requests = stream(pool)
    assert requests == stream(pool)
    first = [one.notice.excerpt for one in requests if one.truth.task is QA][:20]
    assert len(set(first)) == 20
    one = requests[0]
    assert one.truth.slo == slo_for(one.truth.task, one.truth.importance, 0.2)
    assert (one.notice.ttft_slo_ms, one.notice.max_output_tokens, one.request.declared_slo) == (0.0, MAX_TOKENS, None)


def by_id(requests):
    known = truths(requests)
    return lambda notice: known[notice.request_id]


class Blind:
    """Perception that takes everything for a long story."""

    def __init__(self):
        self.learnt = []

    def perceive(self, notice, now_s):
        return known(make_believer("rules", lambda _notice: None, 0.2)).perception.perceive(
            msgspec.structs.replace(notice, excerpt=TEXTS[LONG]), now_s
        )

    def learn(self, completion):
        self.learnt.append(completion)


class NoCosts:
    """Prediction before its first snapshot."""

    def observe(self, snapshot):
        self.seen = snapshot

    def learn(self, completion):
        assert isinstance(completion, Completion)

    def predict(self, _features, _now_s):
        return []


@pytest.mark.parametrize(("targets", "lengths"), [(True, False), (False, True), (True, True)])
def test_an_oracle_puts_right_what_it_knows_and_nothing_else(pool, targets, lengths):
    requests = stream(pool)
    blind = Blind()
    oracle = Oracle(blind, cast("PredictionModel", NoCosts()), by_id(requests), targets=targets, lengths=lengths)
    made = run(requests, read_fleet("1xdemo-small"), WAYS["sjf"], oracle, answer_s=0.01, slo_scale=0.2)
    assert made.violations == []
    assert len(made.said) == len(requests)
    for one in requests:
        said = made.said[one.request.id]
        assert (said.task_type == one.truth.task) is (targets or one.truth.task is LONG)
        assert (said.output_tokens == one.truth.output_tokens) is lengths
        assert (said.ttft_slo_ms == one.truth.slo.ttft_ms) is (targets or one.truth.task is LONG)
    completed = {result.index for result in made.results if result.outcome == "completed"}
    assert completed
    assert {int(one.request_id) for one in blind.learnt if one.outcome is OutcomeKind.COMPLETED} == completed


def test_what_is_good_follows_from_the_true_targets_whatever_was_believed(pool):
    requests = stream(pool)
    fleet = read_fleet("1xdemo-small")
    made = run(requests, fleet, WAYS["hmas"], None, answer_s=0.01, slo_scale=0.2)
    assert [result.slo for result in made.results] == [one.truth.slo for one in requests]
    assert [result.task_type for result in made.results] == [one.truth.task for one in requests]
    assert made.said == {}


TINY = AblationSettings(
    beliefs=("none", "rules", "rules+lengths"),
    ways=("sjf", "hmas"),
    fleet="1xdemo-small",
    loads=(1.0,),
    seeds=2,
    duration_s=20.0,
    period_s=10.0,
    backlog=40,
    caps=(4, 8),
)


@pytest.fixture(scope="module")
def document(data):
    patch = pytest.MonkeyPatch()
    patch.setattr(simulate, "held_out", lambda _folder: lambda _row: True)
    yield SimulatedAblation(data, TINY, on_cores(1), lambda _text: None).run()
    patch.undo()


def test_every_belief_meets_the_same_requests(document):
    assert document["broken"] == []
    rows = document["rows"]
    assert len(rows) == 2 * 3 * 2
    for seed in (1, 2):
        assert len({r["figures"]["submitted"] for r in rows if r["seed"] == seed}) == 1
    (place,) = (place for place in document["summary"] if place["way"] == "sjf")
    by_belief = {one["belief"]: one for one in place["beliefs"]}
    assert by_belief["rules+lengths"]["length_factor"]["mean"] == pytest.approx(1.0)
    assert by_belief["rules"]["length_factor"]["mean"] > 1.05
    assert "task_accuracy" not in by_belief["none"]
    ratios = [
        one["figures"]["goodput_rps"] / other["figures"]["goodput_rps"]
        for one, other in zip(
            [r for r in rows if (r["way"], r["belief"]) == ("sjf", "rules+lengths")],
            [r for r in rows if (r["way"], r["belief"]) == ("sjf", "rules")],
            strict=True,
        )
    ]
    assert by_belief["rules+lengths"]["goodput_rps"]["over_rules"]["mean"] == pytest.approx(sum(ratios) / 2, abs=1e-3)


def test_the_page_holds_tables_and_words_between_its_markers(document, tmp_path):
    (tmp_path / "simulated.json").write_text(json.dumps(document))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- simulated:begin -->\nold\n<!-- simulated:end -->\nafter\n")
    assert write_page(page, tmp_path) == ["simulated"]
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    for table in simulated_tables(document):
        assert table.title in text
    for line in simulated_verdicts(document):
        assert line in text
    page.write_text("no markers")
    with pytest.raises(StudyError, match="0 pairs of <!-- simulated:begin -->"):
        write_page(page, tmp_path)
    with pytest.raises(StudyError, match=r"holds none of live\.json, simulated\.json"):
        write_page(page, tmp_path / "nothing")


def test_rules_that_learn_nothing_say_the_same_after_any_number_of_answers(pool):
    fleet = read_fleet("1xa100-qwen3-8b")
    spec = ArrivalSpec(mean_rps=4.0, duration_s=40.0)
    requests = draw(pool, load_mixture()[0], spec, seed=1, slo_scale=1.0, model=fleet.model())
    lengths = {}
    for belief in ("fixed rules", "rules"):
        believer = make_believer(belief, by_id(requests), 1.0)
        made = run(requests, fleet, WAYS["sjf"], believer, answer_s=0.01, slo_scale=1.0)
        assert {one.outcome for one in made.results} == {"completed"}
        lengths[belief] = {made.said[one.request.id].output_tokens for one in requests if one.truth.task is QA}
    assert len(lengths["fixed rules"]) == 1
    assert len(lengths["rules"]) > 5


def test_the_paper_s_own_system_is_a_way():
    paper = way_of("paper")
    assert (paper.policy, paper.steered, paper.admission.tpot_guard, paper.agents["statera_law"]) == ("sjf", True, 0.0, "paper")
    assert way_of("hmas") is WAYS["hmas"]
    assert read_ways("") == (*WAYS, "paper")


def test_dispatches_are_told_apart_by_whether_the_answer_had_come(pool):
    requests = stream(pool)
    made = run(requests, read_fleet("1xdemo-small"), WAYS["fcfs"], None, answer_s=0.01, slo_scale=0.2)
    waits = [0.0, 0.0, 4.0, 10.0, 900.0, -1.0]
    waited = enumerate(zip(made.results, waits, strict=False))
    results = [msgspec.structs.replace(one, at_s=float(number), queue_ms=wait) for number, (one, wait) in waited]
    assert masking(results, warmup_s=0.0, answer_s=0.01) == pytest.approx({"at_once": 0.4, "before_answer": 0.2, "masked": 0.4})
    assert masking(results, warmup_s=1.5, answer_s=1.0) == pytest.approx({"at_once": 0.0, "before_answer": 1.0, "masked": 0.0})
    assert masking(results[-1:], warmup_s=0.0, answer_s=0.01) == {}


def test_table_2_s_row_and_masking_have_a_section_of_their_own(data, tmp_path, monkeypatch):
    monkeypatch.setattr(simulate, "held_out", lambda _folder: lambda _row: True)
    settings = msgspec.structs.replace(TINY, beliefs=("fixed rules", "rules", "trained"), ways=("hmas", "paper"), loads=(0.5, 1.5))
    document = SimulatedAblation(data, settings, on_cores(1), lambda _text: None).run()
    assert document["broken"] == []
    assert {ground["window"] for ground in document["grounds"]} == {0}
    (tmp_path / "simulated.json").write_text(json.dumps(document))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- paper-row:begin -->\nold\n<!-- paper-row:end -->\nafter\n")
    assert write_paper_row(page, tmp_path) == ["paper-row"]
    text = page.read_text()
    assert "\nold\n" not in text
    assert "(agents-masking.svg)" in text
    assert (tmp_path / "agents-masking.svg").read_bytes().startswith(b"<?xml")
    rows = paper_table(document).rows
    wanted = [(load, way, one) for load in ("0.5", "1.5") for way in ("hmas", "paper") for one in ("rules", "fixed rules")]
    assert [row[:3] for row in rows[:-1]] == wanted
    assert rows[-1][3:7] == ("0.28", "3.95", "0.88", "0.74")
    place = next(one for one in document["summary"] if (one["load"], one["way"]) == (1.5, "paper"))
    by_belief = {one["belief"]: one for one in place["beliefs"]}
    assert rows[6][6] == f"{by_belief['rules']['goodput_rps']['mean'] / by_belief['trained']['goodput_rps']['mean']:.2f}"
    shares = {row[:2]: [float(cell.rstrip("%")) for cell in row[2:5]] for row in masking_table(document).rows}
    assert all(sum(found) == pytest.approx(100.0, abs=0.2) for found in shares.values())
    assert shares["0.5", "hmas"][0] > shares["1.5", "hmas"][0]


@pytest.mark.parametrize(("read", "text", "said"), [(read_beliefs, "rules,guess", "beliefs: guess"), (read_ways, "lifo", "ways: lifo")])
def test_unknown_names_are_told(read, text, said):
    with pytest.raises(ConfigError, match=f"{said}; allowed: "):
        read(text)


def test_without_data_it_says_what_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("HMAS_DATA_DIR", raising=False)
    assert main(["agents", "--simulate"]) == 2
    assert "give --data DIR or set HMAS_DATA_DIR" in capsys.readouterr().err
    with pytest.raises(TraceError, match="HMAS_DATA_DIR names the folder of the public data"):
        read_pool(tmp_path, lambda _row: True)


def test_training_data_lacks_every_prompt_that_is_judged(data, tmp_path):
    left_out = write_without(data, tmp_path, lambda row: row["task_type"] == LONG.value)
    assert left_out == 21
    pool = read_pool(tmp_path, lambda _row: True)
    assert {task: len(found) for task, found in pool.prompts.items()} == {QA: 20, MATH: 20}
    assert pool.models == ()
    assert read_pool(data, lambda _row: True).models == ("a", "b")


def test_a_run_that_was_broken_off_is_taken_up_where_it_ended(data, tmp_path, document, monkeypatch):
    monkeypatch.setattr(simulate, "held_out", lambda _folder: lambda _row: True)
    path = tmp_path / "rows.jsonl"

    def breaks_off(work, tasks):
        for place, task in enumerate(tasks):
            if len(tasks) == 12 and place == 5:
                raise StudyError("broken off")
            yield place, work(task)

    with pytest.raises(StudyError, match="broken off"):
        SimulatedAblation(data, TINY, breaks_off, lambda _text: None, KeptRows(path)).run()
    made = []

    def counts(work, tasks):
        made.extend(tasks)
        yield from ((place, work(task)) for place, task in enumerate(tasks))

    again = SimulatedAblation(data, TINY, counts, lambda _text: None, KeptRows(path, resume=True)).run()
    assert len(made) == 12 - 5
    assert json.dumps(again) == json.dumps(document)
    path.write_text("no rows\n")
    with pytest.raises(StudyError, match="run without --resume"):
        KeptRows(path, resume=True)
