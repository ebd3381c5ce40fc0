"""The paper's evaluation on little: end to end on a tiny fleet, taken up again where it broke off, on a page, and what cannot be run."""

import gzip
import json
from typing import Literal

import pytest
from hmas_lab.cli import main
from hmas_lab.paper import rows as rows_module
from hmas_lab.paper.arms import ARMS, DEFAULT, FEW, FIXED, LIGHTLLM, NO_META, PRODUCT, SGLANG, STRONG, policy_of
from hmas_lab.paper.page import PLOTS, SHAPE_PLOTS, write_page, write_shapes
from hmas_lab.paper.plots import draw_all
from hmas_lab.paper.radar import RADAR, SYSTEMS, radar_shares, radar_table
from hmas_lab.paper.rows import kept_rows
from hmas_lab.paper.scenarios import ABLATED, SCENARIOS
from hmas_lab.paper.scenarios import FEW as FEW_SCENARIOS
from hmas_lab.paper.settings import ABLATED_ON, MODELS, Model, PaperSettings, quick, read_arms, read_models, read_scenarios
from hmas_lab.paper.study import PaperStudy
from hmas_lab.paper.tables import hindsight_table, ratio_words
from hmas_lab.result_files import write_result

from hmas.controller.core.errors import ConfigError, TraceError
from hmas.controller.scheduling.policies.registry import BUILT_IN
from hmas.planning import StudyError
from hmas.planning.backends import on_cores
from hmas.planning.running import run_case
from hmas.workloads import build

TINY = PaperSettings(
    models={"tiny": Model(words="a small engine", profile="demo-small", instances=1, whole=True)},
    scenarios=("low", "load-50", "azure-300", "phases", "burst"),
    arms=(DEFAULT, SGLANG, LIGHTLLM, STRONG, "fixed:fcfs", "fixed:edf", "fixed:sjf", PRODUCT, NO_META),
    seeds=2,
    piece=1.0,
    span=0.08,
    backlog=60,
    caps=(8, 32),
)


TINY_BURST = PaperSettings(
    models=TINY.models, scenarios=("burst",), arms=(DEFAULT, PRODUCT), seeds=2, piece=1.0, span=0.1, backlog=60, caps=(8, 16)
)


def study(path=None, settings=TINY, backend=None, **kept):
    return PaperStudy(settings, backend or on_cores(1), lambda _text: None, kept_rows(path, **kept))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("paper") / "rows.jsonl"
    return study(path).run(), path


class Counting:
    """A backend that counts what it is asked for, and breaks off after so many."""

    def __init__(self, most=10**9):
        self.most, self.made = most, 0

    def __call__(self, work, tasks):
        for place, task in enumerate(tasks):
            if self.made == self.most:
                raise KeyboardInterrupt
            self.made += 1
            yield place, work(task)


def test_every_arm_meets_the_same_requests_in_every_scenario(whole):
    document, _ = whole
    assert document["broken"] == []
    assert document["left_out"] == ["azure-300"]
    assert [place["scenario"] for place in document["summary"]] == ["low", "load-50", "phases", "burst"]
    for scenario in ("low", "load-50", "phases", "burst"):
        mine = [row for row in document["rows"] if row["scenario"] == scenario]
        wanted = {*TINY.arms} - (set() if scenario in ABLATED else {NO_META})
        assert {row["arm"] for row in mine} == wanted
        for seed in (1, 2):
            assert len({row["figures"]["submitted"] for row in mine if row["seed"] == seed}) == 1
    place = next(one for one in document["summary"] if one["scenario"] == "phases")
    assert place["best_fixed"] in FIXED
    goodput = {arm: place["arms"][arm]["figures"]["goodput_rps"]["mean"] for arm in place["arms"] if arm in FIXED}
    assert goodput[place["best_fixed"]] == max(goodput.values())
    table = hindsight_table(document)
    told = next(row for row in table.rows if row[1] == "phases")[table.head.index("over the best but `robust-edf`")]
    over = place["arms"][PRODUCT]["over"][place["best_fixed"]]["goodput_rps"]
    assert told == f"{policy_of(place['best_fixed'])}: {ratio_words(over)}"
    assert place["arms"][STRONG]["window"] in TINY.caps
    assert place["arms"][DEFAULT]["window"] == 0


def test_what_is_there_is_not_made_again(whole):
    document, path = whole
    backend = Counting()
    again = study(path, backend=backend).run()
    assert backend.made == 0
    assert json.dumps(again) == json.dumps(document)


def test_a_run_that_breaks_off_goes_on_where_it_was(tmp_path):
    alone = Counting()
    document = study(settings=TINY_BURST, backend=alone).run()
    path = tmp_path / "rows.jsonl"
    with pytest.raises(KeyboardInterrupt):
        study(path, TINY_BURST, Counting(most=4)).run()
    with path.open("ab") as file:
        file.write(b'["half a line')
    further = Counting()
    assert json.dumps(study(path, TINY_BURST, further).run()) == json.dumps(document)
    assert further.made == alone.made - 4


def test_rows_of_other_sources_count_only_where_that_is_asked_for(whole, tmp_path, monkeypatch):
    _, path = whole
    copied = tmp_path / "rows.jsonl"
    copied.write_bytes(path.read_bytes())
    monkeypatch.setattr(rows_module, "fingerprint", lambda: "changed")
    counted = {}
    cases: tuple[tuple[Literal["none", "static", "all"], tuple[str, ...]], ...] = (
        ("none", ()),
        ("static", ()),
        ("all", ()),
        ("all", (STRONG,)),
    )
    for old, again in cases:
        kept = kept_rows(copied, old=old, again=again)
        counted[old, again] = len(kept)
    steered = sum(json.loads(line)[1]["steered"] for line in path.read_text().splitlines())
    everything = len(path.read_text().splitlines())
    assert counted["none", ()] == 0
    assert counted["all", ()] == everything
    assert counted["static", ()] == everything - steered
    assert 0 < counted["all", (STRONG,)] < everything


def test_a_file_that_is_none_of_rows_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n")
    with pytest.raises(StudyError, match="no file of rows"):
        kept_rows(path)


def test_the_page_shows_every_goal_and_the_plots(whole, tmp_path):
    document, _ = whole
    write_result(tmp_path / "hmas.json", document)
    drawn = draw_all(tmp_path, document)
    assert set(drawn) == set(PLOTS)
    page = tmp_path / "docs" / "results-larger.md"
    page.parent.mkdir()
    page.write_text("before\n<!-- hmas:begin -->\nold\n<!-- hmas:end -->\nafter\n")
    assert write_page(page, tmp_path) == ["hmas"]
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "\nold\n" not in text
    assert text.count("| reached |") + text.count("| MISSED |") == len(document["goals"]) > 4
    assert "81.76%" in text
    assert "azure-300" in text
    assert "Not run for what stands here: models qwen3-8b" in text
    for name in drawn:
        own = name.replace("hmas", "larger")
        assert (page.parent / f"{own}.svg").read_bytes().startswith(b"<?xml")
        assert f"({own}.svg)" in text
    before = {name: (tmp_path / f"{name}.svg").read_bytes() for name in drawn}
    draw_all(tmp_path, document)
    assert before == {name: (tmp_path / f"{name}.svg").read_bytes() for name in drawn}


def test_radars_and_courses_have_a_section_of_their_own(whole, tmp_path):
    document, _ = whole
    write_result(tmp_path / "hmas.json", document)
    page = tmp_path / "results.md"
    page.write_text("before\n<!-- hmas-shapes:begin -->\nold\n<!-- hmas-shapes:end -->\nafter\n")
    assert write_shapes(page, tmp_path) == ["hmas-shapes"]
    text = page.read_text()
    assert "\nold\n" not in text
    assert [name for name in SHAPE_PLOTS if f"({name}.svg)" in text] == list(SHAPE_PLOTS)
    place = next(one for one in document["summary"] if one["scenario"] == "load-50")
    shares = radar_shares(place)
    assert list(shares) == list(SYSTEMS)
    for number, figure in enumerate(RADAR):
        mine = [one[number] for one in shares.values()]
        assert max(mine) == 1.0
        best = list(shares)[mine.index(1.0)]
        figures = {arm: place["arms"][arm]["figures"][figure]["mean"] for arm in SYSTEMS}
        assert figures[best] == max(figures.values())
    assert [row[:2] for row in radar_table(document).rows] == [("load-50", arm) for arm in SYSTEMS]
    drawn = (tmp_path / "hmas-radar.svg").read_text()
    assert all(f">{words}<" in drawn for words in (*RADAR.values(), *SYSTEMS))
    write_result(tmp_path / "hmas.json", document | {"summary": [one for one in document["summary"] if one["scenario"] != "load-50"]})
    with pytest.raises(StudyError, match="holds none of the scenarios load-30"):
        write_shapes(page, tmp_path)


def test_a_run_that_the_checker_objects_to_is_told_and_fails(monkeypatch, tmp_path, capsys):
    seen = run_case

    def objecting(case, **kwargs):
        run = seen(case, **kwargs)
        steered = bool(case.agents)
        return run if not steered else type(run)(**{name: getattr(run, name) for name in run.__slots__} | {"violations": ["lost one"]})

    monkeypatch.setattr(rows_module, "run_case", objecting)
    document = study(tmp_path / "rows.jsonl", settings=TINY_BURST).run()
    assert len(document["broken"]) == 2
    assert all("lost one" in text and PRODUCT in text for text in document["broken"])


def test_models_beyond_the_first_meet_fewer_arms():
    settings = PaperSettings(data="somewhere")
    assert settings.scenarios_of("qwen3-8b") == tuple(SCENARIOS)
    assert set(settings.scenarios_of("qwen3-14b")) == set(FEW_SCENARIOS)
    assert set(settings.scenarios_of(ABLATED_ON)) == {*FEW_SCENARIOS, *ABLATED}
    assert set(settings.arms_of("qwen3-14b", "burst")) == set(FEW)
    assert NO_META in settings.arms_of(ABLATED_ON, "phases")
    assert NO_META not in settings.arms_of("qwen3-8b", "phases")
    assert settings.fleet("llama-3.3-70b") == "1xa100-llama-3-70b-tp4"
    assert MODELS["llama-3.3-70b"].fleet(0.01) == "1xa100-llama-3-70b-tp4"
    assert set(quick(settings).arms) & set(FIXED) == {name for name in FEW if name in FIXED}


def test_every_policy_of_the_pool_is_a_fixed_arm():
    assert [policy_of(arm) for arm in FIXED] == [policy.name for policy in BUILT_IN]
    assert all(not ARMS[arm].agents and not ARMS[arm].admission for arm in FIXED)


def test_a_replay_begins_later_in_the_trace_with_every_seed(tmp_path):
    trace = tmp_path / "arrivals" / "azure_llm_2023_conv.csv.gz"
    trace.parent.mkdir()
    with gzip.open(trace, "wt") as file:
        file.write("arrival_s,timestamp_utc,context_tokens,generated_tokens\n")
        file.writelines(f"{second / 6.0},,{100 + second % 7},{20 + second % 11}\n" for second in range(13_600))
    firsts = []
    for seed in (1, 2):
        text = SCENARIOS["azure-300"].workload(rate_rps=30.0, span_s=300.0, slo_scale=0.5, data=str(tmp_path), seed=seed)
        workload = build(f"{text},seed={seed}")
        assert workload.rate_rps == pytest.approx(30.0, rel=0.02)
        firsts.append(workload.prompt_tokens[:50].tolist())
    assert firsts[0] != firsts[1]


@pytest.mark.parametrize("read", [read_models, read_scenarios, read_arms])
def test_what_there_is_not_is_refused_with_what_there_is(read):
    with pytest.raises(ConfigError, match="nonsense; allowed: "):
        read("nonsense")


def test_the_command_runs_a_part_and_writes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hmas_lab.paper.settings.MODELS", TINY.models)
    monkeypatch.delenv("HMAS_DATA_DIR", raising=False)
    out = tmp_path / "out"
    options = [
        "--scenarios",
        "burst,azure-300",
        "--arms",
        f"{DEFAULT},{PRODUCT},fixed:edf",
        "--seeds",
        "2",
        "--span",
        "0.1",
        "--piece",
        "1",
    ]
    assert main(["paper", *options, "--workers", "1", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "left out without HMAS_DATA_DIR: azure-300" in said.err
    assert "goodput over the engine default" in said.out
    document = json.loads((out / "hmas.json").read_text())
    assert {row["arm"] for row in document["rows"]} == {DEFAULT, PRODUCT, "fixed:edf"}
    assert (out / "hmas-ratios.svg").exists()


def test_a_page_without_results_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- hmas:begin -->\n<!-- hmas:end -->\n")
    with pytest.raises(StudyError, match="hmas-lab paper"):
        write_page(page, tmp_path)


def test_a_trace_that_is_not_there_is_named(tmp_path):
    settings = PaperSettings(
        models=TINY.models, scenarios=("azure-300",), arms=(DEFAULT,), seeds=2, data=str(tmp_path), backlog=20, caps=(8,)
    )
    with pytest.raises((StudyError, TraceError), match="azure_llm_2023_conv"):
        study(None, settings=settings).run()
