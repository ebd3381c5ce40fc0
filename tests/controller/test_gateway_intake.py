"""What is read from a body, and how claims are read from headers."""

import orjson
import pytest
from body_kit import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.config.section import TenantConfig
from hmas.controller.core.bodies.messages import MESSAGES
from hmas.controller.core.bodies.responses import RESPONSES
from hmas.controller.core.errors import BodyError
from hmas.controller.core.prompt_texts import EXCERPT_HEAD, EXCERPT_TAIL, HISTORY_CHARS
from hmas.controller.core.request_body import BYTES_PER_EMBEDDING, CHAT, COMPLETIONS, TOKENS_PER_IMAGE, read_call
from hmas.controller.gateway.requests.request_headers import read_claims


def chat_call(*contents: object, **fields: object):
    messages = [{"role": "user", "content": content} for content in contents]
    return read_call(CHAT, {"model": "m", "messages": messages, **fields})


def test_lengths_and_excerpt_of_a_short_prompt():
    call = chat_call("you are helpful", "say hi")
    assert (call.excerpt, call.history) == ("say hi", "you are helpful")
    assert (call.question_chars, call.question_tokens > 0) == (len("say hi"), True)
    assert call.prompt_chars == len("you are helpful") + len("say hi")
    assert call.prompt_tokens > 5
    assert (call.stream, call.has_tools, call.max_output_tokens, call.priority) == (False, False, None, None)


def test_the_excerpt_of_a_long_prompt_is_its_head_and_tail():
    call = chat_call([{"type": "text", "text": "A" * 5000}, {"type": "text", "text": "B" * 5000}])
    head, tail = call.excerpt.split("\n...\n")
    assert (head, tail) == ("A" * EXCERPT_HEAD, "B" * EXCERPT_TAIL)


@given(st.lists(st.text(max_size=3000), min_size=1, max_size=6))
def test_the_excerpt_is_bounded(texts: list[str]):
    call = chat_call(*texts)
    assert len(call.excerpt) <= EXCERPT_HEAD + EXCERPT_TAIL + 5
    assert len(call.history) <= HISTORY_CHARS + len(texts)
    assert call.prompt_chars == sum(map(len, texts))


def test_parts_that_are_no_text_cost_tokens():
    text = chat_call([{"type": "text", "text": "look"}])
    image = chat_call([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:..."}}])
    assert image.prompt_tokens == text.prompt_tokens + TOKENS_PER_IMAGE
    assert image.excerpt == "look"
    assert (text.images, image.images) == (0, 1)
    sound = chat_call([{"type": "input_audio", "input_audio": {}}, {"type": ["odd"]}, {}])
    assert sound.images == 0


def test_tool_definitions_cost_tokens():
    tools = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
    assert chat_call("hi", tools=tools).prompt_tokens > chat_call("hi").prompt_tokens
    assert chat_call("hi", tools=tools).has_tools
    assert not chat_call("hi", tools=[]).has_tools


def test_the_turns_of_a_chat_are_counted():
    assert chat_call("you are helpful", "say hi", "hi", "and now?").turns == 4
    assert read_call(COMPLETIONS, {"model": "m", "prompt": "say hi"}).turns == 0


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [([1, 2, 3], 3), ([1.0, 2], 2), ([[1, 2], [3]], 3), (["", ""], 1), ([], None), ([True], None), ([1.5], None), ([1.0, True], None)],
)
def test_prompts_as_token_ids(prompt: object, tokens: int | None):
    document = {"model": "m", "prompt": prompt}
    if tokens is None:
        with pytest.raises(BodyError, match="prompt"):
            read_call(COMPLETIONS, document)
    else:
        assert read_call(COMPLETIONS, document).prompt_tokens == tokens


@pytest.mark.parametrize("prompt", [{}, {"prompt": None}, {"prompt": ""}, {"prompt": []}])
def test_a_prompt_may_come_as_embeddings(prompt: dict[str, object]):
    text = "A" * (BYTES_PER_EMBEDDING * 14)
    one = read_call(COMPLETIONS, {"model": "m", **prompt, "prompt_embeds": text}, block_salt="t")
    two = read_call(COMPLETIONS, {"model": "m", **prompt, "prompt_embeds": [text, "AAAA"], "max_tokens": 4})
    assert (one.prompt_tokens, one.prompts, two.prompt_tokens, two.prompts, two.max_output_tokens) == (10, 1, 11, 2, 8)
    assert not one.counted, "it is estimated"
    wrongs: tuple[object, ...] = (5, [], [5], {})
    for wrong in wrongs:
        with pytest.raises(BodyError, match="prompt_embeds is"):
            read_call(COMPLETIONS, {"model": "m", **prompt, "prompt_embeds": wrong})


def test_a_cut_of_the_prompt_that_engines_ignore_changes_nothing():
    for path, name in ((MESSAGES, "messages"), (RESPONSES, "input")):
        document = {"model": "m", name: [{"role": "user", "content": "word " * 500}], "max_tokens": 5}
        cut = read_call(path, {**document, "truncate_prompt_tokens": 1})
        assert cut.prompt_tokens == read_call(path, document).prompt_tokens > 400


def test_the_newer_cap_wins_and_choices_multiply_it():
    assert chat_call("x", max_tokens=5, max_completion_tokens=7).max_output_tokens == 7
    completion = read_call(COMPLETIONS, {"model": "m", "prompt": "x", "max_tokens": 4000, "max_completion_tokens": 1})
    assert completion.max_output_tokens == 4000, "engines ignore the name that only chats have"
    assert chat_call("x", max_tokens=5, n=3).max_output_tokens == 15
    assert chat_call("x", max_tokens=None).max_output_tokens is None


def test_whole_numbers_may_be_written_with_a_point_or_as_texts():
    for eight, two, three in ((8.0, 2.0, -3.0), ("8", "2", "-3"), (" 8.0 ", "+02", "-0_3.00")):
        call = chat_call("x", max_tokens=eight, n=two, priority=three, min_tokens=two)
        assert (call.max_output_tokens, call.choices, call.priority, call.min_output_tokens) == (16, 2, -3, 4)
        assert type(call.max_output_tokens) is type(call.priority) is int
        assert read_call(RESPONSES, {"model": "m", "input": "x", "max_output_tokens": eight}).max_output_tokens == 8
    ids, floats = (read_call(COMPLETIONS, {"model": "m", "prompt": [one] * 99}, block_salt="t").blocks for one in (7, 7.0))
    assert ids == floats != ()
    for value in ("", "9.", "9.5", "9e1", "0x9", "9__0", "\u0669", "0", "9" * 5000, True, 0.5, 0.0, -2.0, 1e300):
        with pytest.raises(BodyError, match="a whole number from 1"):
            chat_call("x", max_tokens=value)


def test_a_cap_of_minus_one_is_none():
    for value in (-1, -1.0, "-1"):
        assert chat_call("x", max_tokens=value).max_output_tokens is None
        assert chat_call("x", max_tokens=5, max_completion_tokens=value).max_output_tokens is None, "the newer one wins"
        assert read_call(COMPLETIONS, {"model": "m", "prompt": "x", "max_tokens": value}).max_output_tokens is None
        assert read_call(RESPONSES, {"model": "m", "input": "x", "max_output_tokens": value}).max_output_tokens is None


def test_a_cap_of_zero_is_for_prompts_that_come_back():
    scored = {"model": "m", "prompt": ["a", "b"], "max_tokens": 0, "logprobs": 1}
    assert read_call(COMPLETIONS, {**scored, "echo": True}).max_output_tokens == 2, "each counts as one token"
    for document in (scored, {**scored, "echo": 1}, {**scored, "echo": True, "max_tokens": -2}):
        with pytest.raises(BodyError, match="max_tokens is"):
            read_call(COMPLETIONS, document)
    with pytest.raises(BodyError, match="max_tokens is 0"):
        chat_call("x", max_tokens=0, echo=True)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes):
    error = refusal(CHAT, body)
    assert error is None or (error.status == 400 and orjson.loads(error.body())["error"]["message"])


KEYS = st.sampled_from(
    ["model", "messages", "role", "content", "n", "stream", "tools", "priority", "text", "prompt", "tool_calls", "function", "arguments"]
)
LEAVES = st.none() | st.booleans() | st.integers(-100, 100) | st.text(max_size=5)


@settings(max_examples=50)
@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20))
def test_any_json_is_read_or_refused(document: object):
    for path in (CHAT, COMPLETIONS):
        error = refusal(path, orjson.dumps(document))
        assert error is None or error.status == 400


def test_claims_and_their_aliases():
    limits = TenantConfig(min_ttft_ms=200, min_tpot_ms=10)
    claims = read_claims({"x-llm-d-slo-ttft-ms": "150", "x-slo-tpot-ms": "25.5", "x-session-id": "s-1"}, limits)
    assert (claims.ttft_ms, claims.tpot_ms, claims.session) == (200, 25.5, "s-1")
    none = read_claims({"traceparent": "not-a-trace", "x-request-id": "<script>"}, limits)
    assert (none.ttft_ms, none.tpot_ms, none.request_id, none.trace_headers) == (None, None, "", {})
