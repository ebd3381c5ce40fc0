"""The question about an operator's words on a real vLLM: a tiny model of random weights, held to the schema: form without sense."""

from datetime import UTC, datetime

import pytest

from hmas.agents.meta.selectors.llm_answer import AnswerError
from hmas.agents.meta.selectors.llm_endpoint import ChatEndpoint
from hmas.intents.answer import SETTINGS, question, read_answer
from hmas.intents.plan import Site, plan

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
SITE = Site(
    tenants={name: dict.fromkeys(SETTINGS, 1.0) for name in ("team-a", "batch-jobs")},
    models=("tiny",),
    now_s=datetime(2026, 11, 25, 10, 12, tzinfo=UTC).timestamp(),
)
WORDS = ("team-a first until six, batch may wait", "batch-jobs: 4 at once until Friday noon", "what is the weather?")


@pytest.mark.parametrize("words", WORDS)
def test_its_answer_is_of_the_schema_and_its_nonsense_is_refused(schema_vllm_url, words):
    """Every part of the schema is one that the engine's guided decoding takes and holds."""
    text = ChatEndpoint(schema_vllm_url, timeout_s=120.0).ask(question(words, SITE.tenants, SITE.models, SITE.now_s, UTC, model="tiny"))
    assert {change.tenant for change in read_answer(text).changes} <= set(SITE.tenants)
    with pytest.raises(AnswerError):
        plan(text, words, SITE, override_id="i", author="a", zone=UTC)
