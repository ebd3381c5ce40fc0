"""The written intentions: a model without mistakes is right about all, one with mistakes is hardly ever believed, and both are counted."""

import json
from collections import Counter

import pytest
from chat_kit import chat_server, raw, says, text_of
from hmas_lab.cli import main
from hmas_lab.intents.cases import read_cases
from hmas_lab.intents.evaluation import judged

CASES = read_cases()


def test_there_are_a_hundred_and_no_two_alike():
    assert len(CASES) == len({case.words for case in CASES}) == 100
    assert sum(bool(case.refusal) for case in CASES) == 28


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words)
def test_a_model_without_mistakes_is_right(case):
    verdict = judged(case, case.ideal)
    assert verdict.outcome == ("right refusal" if case.refusal else "right"), verdict.why


@pytest.mark.parametrize("case", read_cases(further=True), ids=lambda case: case.words)
def test_the_checks_refuse_no_right_answer_to_further_words(case):
    verdict = judged(case, case.ideal)
    assert verdict.outcome == "right", verdict.why


def test_the_right_answer_to_other_words_is_not_accepted():
    accepted = [
        (case.words, other.ideal)
        for case in CASES
        for other in CASES
        if other is not case and other.site is case.site and judged(case, other.ideal).outcome == "wrong and accepted"
    ]
    assert {words for words, _ in accepted} <= {"interns get something tomorrow"}, "what is unclear only the model can tell"


def test_a_model_that_refuses_nothing_is_caught_where_code_can_know_better():
    """Unknown tenants, no end, too far, too long, passed: whatever the model says. What is meant only the model can see."""
    first = '{{"refuse":"no","changes":[{{"tenant":"{}","setting":"weight","value":"first"}}],"ends":"{}"}}'
    accepted = [
        case.refusal
        for case in CASES
        if case.refusal
        for tenant in case.site.tenants
        for ends in ("not named", "until 6", "until 5", "until monday")
        if judged(case, first.format(tenant, ends)).outcome == "wrong and accepted"
    ]
    assert set(accepted) <= {"contradiction", "unclear", "out of scope"}


def test_wrong_answers_are_told_from_right_ones():
    case = next(case for case in CASES if case.words == "give team-a weight 3 until 18:00")
    assert judged(case, case.ideal).outcome == "right"
    compared = next(case for case in CASES if case.words == "team-a ahead of team-b until 11")
    reversed_ = compared.ideal.replace("first", "LAST").replace("last", "first").replace("LAST", "last")
    assert judged(compared, reversed_).outcome == "wrong and accepted", "which of two goes first only the model reads"


def test_the_command_asks_an_endpoint_and_counts(tmp_path, capsys):
    def behave(handler, body):
        asked = body["messages"][1]["content"]
        case = next(case for case in CASES if f'"{case.words}"' in asked)
        raw(handler, text_of("I refuse to write JSON" if "weight 3" in case.words else case.ideal))

    with chat_server(behave) as chat:
        assert main(["intents", "--base-url", chat.url, "--model", "perfect", "--out", str(tmp_path)]) == 0
    out, _ = capsys.readouterr()
    assert "perfect: 72 intentions that can be followed, 28 that must be refused" in out
    document = json.loads((tmp_path / "intents.json").read_text())
    assert document["summary"]["outcomes"] == {"right": 71, "right refusal": 28, "wrong and accepted": 0, "refused though right": 1}
    assert document["summary"]["refused_by"]["refused though right: form"] == 1
    assert len(document["answers"]) == 100
    assert Counter(answer["by"] for answer in document["answers"]) == {"": 71, "model": 20, "checks": 8, "form": 1}
    page = tmp_path / "page.md"
    page.write_text("# x\n\n<!-- intents:begin -->\n<!-- intents:end -->\n")
    assert main(["intents", "--page", str(page), "--out", str(tmp_path)]) == 0
    assert "| right | exactly what was asked is set | 71 | - |" in page.read_text()


def test_no_answers_are_counted_too(tmp_path, capsys):
    with chat_server(says(None)) as chat:
        assert main(["intents", "--base-url", chat.url, "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["summary"]
    assert found["outcomes"] == {"right": 0, "right refusal": 28, "wrong and accepted": 0, "refused though right": 72}


@pytest.mark.parametrize("options", [[], ["--base-url", "http://x", "--vllm-python", "p"], ["--weights", "w"]])
def test_it_says_what_it_needs(capsys, options):
    assert main(["intents", *options]) == 2
    assert "give --base-url, or --vllm-python and --weights" in capsys.readouterr().err
