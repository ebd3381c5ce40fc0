"""Bodies of every shape in, the texts that perception sees out: the same from the gateway as from training."""

import json
import random
from pathlib import Path

import msgspec
import pytest
from gateway_kit import MODEL, running

from hmas.agents.perception.reading import view_of
from hmas.agents.perception.training.data import view_of_body
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.core.client_bodies import EXCHANGES, Shape, client_body
from hmas.controller.core.client_systems import JUDGING, TRAINING, long_system, short_system
from hmas.controller.core.errors import BodyError
from hmas.controller.core.messages import REQUESTS, RequestNotice
from hmas.controller.core.prompt_texts import EXCERPT_HEAD, EXCERPT_TAIL, HISTORY_CHARS, HISTORY_MESSAGE_CHARS, SYSTEM_CHARS
from hmas.controller.core.request_body import CHAT, COMPLETIONS, read_call
from hmas.engines.tokens import estimate_tokens

PROMPT = "What is the capital of Peru?"
TALK = [("Tell me of llamas.", "They spit. " * 90), ("And of alpacas?", "They spit less.")]


def view(shape: Shape, seed: int = 1, **more):
    return view_of_body(*client_body(shape, PROMPT, model="m", rng=random.Random(seed), exchanges=TALK, **more))


def chat(*messages: tuple[str, object], **fields: object):
    return read_call(CHAT, {"model": "m", "messages": [{"role": role, "content": content} for role, content in messages], **fields})


@pytest.mark.parametrize("shape", Shape)
def test_the_question_is_the_excerpt_in_every_shape(shape: Shape):
    for seed in range(8):
        found = view(shape, seed)
        assert found.excerpt == PROMPT
        assert found.question_chars == len(PROMPT)
        assert found.question_tokens == estimate_tokens(PROMPT)
        assert found.prompt_tokens >= found.question_tokens


def test_what_comes_along_is_read():
    assert (view(Shape.COMPLETION).turns, view(Shape.CHAT).turns, view(Shape.SYSTEM).turns) == (0, 1, 2)
    assert {view(Shape.HISTORY_15, seed).turns for seed in range(20)} == {31, 32}
    assert [view(shape).has_tools for shape in (Shape.CHAT, Shape.TOOLS, Shape.TOOL_RESULT)] == [False, True, True]
    assert [view(shape).tool_results for shape in (Shape.TOOLS, Shape.TOOL_RESULT)] == [0, 1]
    assert [view(shape).images for shape in (Shape.CHAT, Shape.PICTURE)] == [0, 1]
    assert [view(shape).wants_json for shape in (Shape.CHAT, Shape.JSON_SCHEMA)] == [False, True]
    assert 1600 <= view(Shape.LONG_SYSTEM).prompt_tokens <= 2400
    capped = view(Shape.CHAT, max_tokens=9, n=3)
    assert (capped.max_output_tokens, capped.choices) == (27, 3)


def test_system_prompts_and_histories_stand_beside_the_question():
    assert view(Shape.SYSTEM).system
    assert 0 < len(view(Shape.LONG_SYSTEM).system) <= SYSTEM_CHARS
    assert view(Shape.HISTORY_1).history == f"Tell me of llamas.\n{TALK[0][1][:HISTORY_MESSAGE_CHARS]}"
    assert view(Shape.HISTORY_4).history.endswith("And of alpacas?\nThey spit less.")
    assert len(view(Shape.HISTORY_15).history) <= HISTORY_CHARS + 2 * EXCHANGES[Shape.HISTORY_15]
    assert (view(Shape.CHAT).system, view(Shape.CHAT).history, view(Shape.COMPLETION).history) == ("", "", "")


@pytest.mark.parametrize(
    ("messages", "excerpt", "system", "history"),
    [
        ([("system", "Translate what comes.")], "Translate what comes.", "", ""),
        ([("developer", "Be brief."), ("assistant", "Hello!")], "Hello!", "Be brief.", ""),
        ([("user", "look at this"), ("user", [{"type": "image_url"}])], "look at this", "", ""),
        ([("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d"), ("tool", "e")], "d", "c", "a\nb"),
        ([("narrator", "Once."), ("tool", "17 degrees")], "Once.", "", ""),
        ([("user", "a"), ("assistant", None), ("tool", "{}"), ("assistant", "b")], "a", "", ""),
        ([("user", [{"type": "image_url"}])], "", "", ""),
    ],
)
def test_what_is_asked_is_found_in_odd_chats(messages, excerpt: str, system: str, history: str):
    call = chat(*messages)
    assert (call.excerpt, call.system, call.history) == (excerpt, system, history)


def test_long_texts_are_cut():
    call = chat(("system", "s" * 9000), ("user", "u" * 9000), ("assistant", "a" * 9000), ("user", "q" * 9000))
    assert call.excerpt == "q" * EXCERPT_HEAD + "\n...\n" + "q" * EXCERPT_TAIL
    assert call.system == "s" * SYSTEM_CHARS
    assert call.history == "u" * HISTORY_MESSAGE_CHARS + "\n" + "a" * HISTORY_MESSAGE_CHARS
    assert (call.question_chars, call.prompt_chars) == (9000, 36000)


def test_priorities_and_caps_may_be_as_large_as_engines_take_them():
    document = {"model": "m", "prompt": "x", "priority": 1_764_547_200_000, "max_tokens": 2**53 - 1}
    call = read_call(COMPLETIONS, document)
    assert (call.priority, call.max_output_tokens) == (1 << 31, 1 << 31)
    with pytest.raises(BodyError, match="priority"):
        read_call(COMPLETIONS, document | {"priority": 1 << 63})


def test_bad_bodies_name_the_field():
    with pytest.raises(BodyError, match=r"messages\[1\]\.content is 5; allowed: a text") as caught:
        chat(("user", "x"), ("user", 5))
    assert caught.value.field == "messages[1].content"
    with pytest.raises(ValueError, match="exchanges is empty"):
        client_body(Shape.HISTORY_4, PROMPT, model="m", rng=random.Random(0))


def test_system_prompts_for_judging_share_no_sentence_with_those_for_training():
    for trained, judged in zip(TRAINING, JUDGING, strict=True):
        for bank, held in zip(trained, judged, strict=True):
            assert not set(bank) & set(held)
    rng = random.Random(3)
    assert len({short_system(rng) for _ in range(200)}) > 120
    assert len({long_system(rng, 9000, holdout=True) for _ in range(20)}) == 20


async def test_the_gateway_and_training_see_the_same(tmp_path: Path):
    bodies = [client_body(shape, PROMPT, model=MODEL, rng=random.Random(7), exchanges=TALK, max_tokens=4) for shape in Shape]
    async with running(tmp_path, agents=AgentsConfig(ask="all")) as rig:
        for path, document in bodies:
            await rig.post(document, path=path)
        notices = [message for message in await rig.bus.latest(REQUESTS, 100) if isinstance(message, RequestNotice)]
    # The context is the engine's, not the body's.
    assert {notice.context_tokens for notice in notices} == {4096}
    live = sorted((view_of(msgspec.structs.replace(notice, context_tokens=0)) for notice in notices), key=repr)
    trained = sorted((view_of_body(path, json.loads(json.dumps(document))) for path, document in bodies), key=repr)
    assert len(live) == len(Shape)
    assert live == trained
    assert {path for path, _ in bodies} == {CHAT, COMPLETIONS}
