"""Arrivals in the bodies that clients send, as the gateway reads them."""

import pytest
from hmas_lab.questions import read_questions

from hmas.controller.core.request_body import read_call
from hmas.controller.core.types import Slo, TaskType
from hmas.loadgen.client_load import FORMS, Clients, Past, Terms
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.process import LoadSpec, request_headers
from hmas.loadgen.prompts import PromptWriter
from hmas.loadgen.workload import Arrival, Turn

LOOSE, TIGHT = Slo(ttft_ms=2000, tpot_ms=60), Slo(ttft_ms=500, tpot_ms=30)
TEXTS = ["How deep is the sea?", "Who built the harbour?"]


def clients(seed=1, **past):
    return Clients(TEXTS, PromptWriter(load_mixture()[1]), seed=seed, past=Past(**past))


def arrival(text="Why is the sky blue?", output=300):
    return Arrival(
        at_s=1.5,
        messages=(Turn("user", text),),
        prompt_tokens=6,
        output_tokens=output,
        max_tokens=1024,
        task_type=TaskType.QA,
        importance=0.75,
        slo=TIGHT,
        tenant="aurora",
        kind="conv",
    )


@pytest.mark.parametrize(
    ("form", "turns", "tools", "choices", "stream"),
    [
        ("chat-1", 1, False, 1, True),
        ("chat-3", 3, False, 1, True),
        ("chat-5", 5, False, 1, True),
        ("chat-9", 9, False, 1, True),
        ("completion", 0, False, 1, True),
        ("tools", 1, True, 1, True),
        ("system-2000", 2, False, 1, True),
        ("not-streamed", 1, False, 1, False),
        ("n-2", 1, False, 2, True),
    ],
)
def test_every_form_is_what_its_name_says(form, turns, tools, choices, stream):
    sent = clients().send(arrival(), 0, form, Terms(0, False, LOOSE))
    call = read_call(sent.body.path, sent.body.document)
    said = [m for m in sent.body.document.get("messages", []) if form == "system-2000" or m["role"] not in ("system", "developer")]
    assert (len(said), call.has_tools, call.choices, call.stream) == (turns, tools, choices, stream)
    assert (sent.body.streamed, sent.body.answers) == (stream, choices)
    assert call.excerpt == "Why is the sky blue?"
    assert sent.prompt_tokens == call.prompt_tokens
    assert (sent.kind, sent.at_s, sent.tenant) == (form, 1.5, "aurora")
    if form == "system-2000":
        assert 1500 < call.prompt_tokens < 3000


def test_all_forms_are_tried():
    assert len(FORMS) == 9


def test_the_terms_are_the_client_s():
    capped = clients().send(arrival(), 0, "chat-1", Terms(100, True, TIGHT))
    assert (capped.body.document["max_tokens"], capped.max_tokens, capped.output_tokens) == (100, 100, 100)
    free = clients().send(arrival(), 0, "chat-1", Terms(0, False, LOOSE))
    assert ("max_tokens" in free.body.document, free.max_tokens, free.output_tokens) == (False, 0, 300)
    load = LoadSpec(url="http://x", model="m")
    assert request_headers(capped, load)["x-slo-tpot-ms"] == "30"
    assert "x-slo-tpot-ms" not in request_headers(free, load)
    assert free.slo == LOOSE, "it is judged although it declares nothing"


def test_the_same_seed_gives_the_same_bodies():
    first, again = (clients().send(arrival(), 7, "chat-9", Terms(0, False, LOOSE)) for _ in range(2))
    other = clients(seed=2).send(arrival(), 7, "chat-9", Terms(0, False, LOOSE))
    assert first == again
    assert first != other


def test_a_history_is_as_long_as_it_may_be():
    sent = clients(question_chars=5, answer_tokens=(3, 8)).send(arrival(), 0, "chat-9", Terms(0, False, LOOSE))
    *history, _question = [m for m in sent.body.document["messages"] if m["role"] in ("user", "assistant")]
    assert all(len(m["content"]) <= (5 if m["role"] == "user" else 80) for m in history)
    assert [m["role"] for m in history] == ["user", "assistant"] * 4


def test_questions_without_public_data_are_the_project_s_own():
    found = read_questions(None, max_prompt=300, max_output=200)
    assert len(found) > 500
    assert all(0 < q.output_tokens <= 200 for q in found)
    assert len({q.text for q in found}) > 400
    assert found == read_questions(None, max_prompt=300, max_output=200)
