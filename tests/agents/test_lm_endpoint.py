"""The reader over HTTP against a server that answers well, badly, late, or not at all. The real vLLM is in test_lm_training.py."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
import orjson
import pytest
from aiohttp import web

from hmas.agents.model_store.card import ModelCard, write_card
from hmas.agents.perception.lm.answers import BIN_WORDS, LETTERS, MIDDLE, NAMES
from hmas.agents.perception.lm.details import LabelTokens, LmDetails
from hmas.agents.perception.lm.endpoint import PROMPTS, EndpointReader, open_endpoint
from hmas.agents.perception.reading import TASKS, PromptView, Reading
from hmas.controller.core.errors import ModelError
from hmas.controller.core.lengths import MEDIAN

EMPTY = Reading()


@dataclass
class Server:
    """Answers completions as told, and keeps what it was asked."""

    answer: Callable[[dict], Awaitable[web.Response]]
    asked: list[dict] = field(default_factory=list)
    url: str = ""

    async def take(self, request: web.Request) -> web.Response:
        document = orjson.loads(await request.read()) | {"authorization": request.headers.get("Authorization", "")}
        self.asked.append(document)
        return await self.answer(document)


Serve = Callable[..., Awaitable[Server]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def begin(answer) -> Server:
        server = Server(answer)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/completions", server.take)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        site = web.TCPSite(runners[-1], "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runners[-1].addresses[0][1]}"
        return server

    yield begin
    for runner in runners:
        await runner.cleanup()


def view(text: str) -> PromptView:
    return PromptView(excerpt=text, prompt_chars=len(text))


def choice(index: int, label: str, letter: str, *, share: float = 0.9) -> dict:
    """An answer as vLLM words it: the text, and at each step the likeliest tokens."""
    rest = math.log((1 - share) / 4)
    others = [name for name in NAMES if name != label][:4]
    tokens = [label, '",', ' "', "output", "_", "tokens", '":', ' "', letter, '"}']
    tops: list[dict[str, float]] = [{token: 0.0} for token in tokens]
    tops[0] = {label: math.log(share)} | dict.fromkeys(others, rest)
    tops[8] = {letter: math.log(share)} | dict.fromkeys([word for word in BIN_WORDS if word != letter][:4], rest)
    return {"index": index, "text": f'{label}{MIDDLE}{letter}"}}', "logprobs": {"tokens": tokens, "top_logprobs": tops, "text_offset": []}}


async def well(document: dict) -> web.Response:
    """Labels every prompt by the task's name that stands in it."""
    choices = [choice(index, next(name for name in NAMES if f"({name})" in prompt), "f") for index, prompt in enumerate(document["prompt"])]
    # Engines may answer in any order.
    return web.json_response({"choices": choices[::-1]})


async def test_a_batch_is_one_request_and_comes_back_in_order(serve):
    server = await serve(well)
    reader = EndpointReader(server.url, "perception", api_key="a-key")
    readings = await reader.read_async([view(f"please ({name})") for name in NAMES])
    assert [TASKS[int(np.argmax(reading.probabilities))].value for reading in readings] == list(NAMES)
    assert readings[0].probabilities[0] == pytest.approx(0.9 / (0.9 + 12 * 0.025), rel=1e-6)
    assert all(sum(reading.probabilities) == pytest.approx(1) for reading in readings)
    assert math.exp(readings[0].log_lengths[MEDIAN]) == pytest.approx(math.exp(5.5 * math.log(40_000) / 20), rel=0.2)
    assert len(server.asked) == 1
    asked = server.asked[0]
    assert asked["model"] == "perception"
    assert asked["authorization"] == "Bearer a-key"
    assert asked["structured_outputs"]["regex"] == asked["regex"]
    assert len(asked["prompt"]) == 13


async def test_many_prompts_are_bounded_requests(serve):
    server = await serve(well)
    reader = EndpointReader(server.url, "perception")
    readings = await reader.read_async([view("(QA)")] * (3 * PROMPTS + 1))
    assert len(readings) == 3 * PROMPTS + 1
    assert all(reading.probabilities for reading in readings)
    assert sorted(len(asked["prompt"]) for asked in server.asked) == [1, PROMPTS, PROMPTS, PROMPTS]


async def test_prompts_without_text_are_not_sent(serve):
    server = await serve(well)
    readings = await EndpointReader(server.url, "perception").read_async([view(""), view("(Dialogue)"), view("  \n")])
    assert [bool(reading.probabilities) for reading in readings] == [False, True, False]
    assert len(server.asked[0]["prompt"]) == 1


async def test_it_reads_from_a_thread_too(serve):
    server = await serve(well)
    readings = await asyncio.to_thread(EndpointReader(server.url, "perception").read, [view("(Translation)")])
    assert TASKS[int(np.argmax(readings[0].probabilities))].value == "Translation"


def tampered(**changes) -> dict:
    return choice(0, "QA", "c") | changes


MALFORMED = {
    "no json": tampered(text="QA, I think"),
    "another prompt": tampered(index=99),
    "another label": tampered(text=f'Poetry{MIDDLE}c"}}'),
    "a number": tampered(text='QA", "output_tokens": 12}'),
    "cut off": tampered(text=f"QA{MIDDLE}"),
    "no log-probabilities": tampered(logprobs=None),
    "empty log-probabilities": tampered(logprobs={"tokens": [], "top_logprobs": []}),
    "nothing at the label": tampered(logprobs={"tokens": ["QA"], "top_logprobs": [None]}),
}


@pytest.mark.parametrize("bad", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_answer_is_an_empty_reading_and_hurts_no_other(serve, bad):
    async def answer(document: dict) -> web.Response:
        return web.json_response({"choices": [bad, choice(1, "MathReasoning", "h")]})

    server = await serve(answer)
    reader = EndpointReader(server.url, "perception")
    first, second = await reader.read_async([view("one"), view("two")])
    assert first == EMPTY
    assert TASKS[int(np.argmax(second.probabilities))].value == "MathReasoning"


BODIES = [b"", b"<html>bad gateway</html>", b"[]", b'{"choices": 5}', b"\xff\xfe"]


@pytest.mark.parametrize("body", BODIES)
async def test_a_server_without_a_usable_word_is_an_error(serve, body):
    async def answer(document: dict) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    server = await serve(answer)
    with pytest.raises(ModelError, match="endpoint:perception: "):
        await EndpointReader(server.url, "perception").read_async([view("one")])


async def test_requests_that_fail_leave_the_readings_of_the_others(serve):
    async def answer(document: dict) -> web.Response:
        return web.json_response({}, status=503) if len(document["prompt"]) == 1 else await well(document)

    server = await serve(answer)
    readings = await EndpointReader(server.url, "perception").read_async([view("(QA)")] * (PROMPTS + 1))
    assert [bool(reading.probabilities) for reading in readings] == [True] * PROMPTS + [False]
    with pytest.raises(ModelError, match="HTTP 503"):
        await EndpointReader(server.url, "perception").read_async([view("(QA)")])


async def test_one_prompt_that_is_refused_leaves_the_others(serve):
    async def answer(document: dict) -> web.Response:
        if any("(too long)" in prompt for prompt in document["prompt"]):
            return web.json_response({"error": {"message": "maximum context length"}}, status=400)
        return await well(document)

    server = await serve(answer)
    texts = ["(QA)", "(Dialogue)", "(too long)", "(Summarization)", "(QA)"]
    readings = await EndpointReader(server.url, "perception").read_async([view(text) for text in texts])
    assert [bool(reading.probabilities) for reading in readings] == [True, True, False, True, True]


async def test_a_late_answer_is_no_answer(serve):
    gone = asyncio.Event()

    async def answer(document: dict) -> web.Response:
        await gone.wait()
        return await well(document)

    server = await serve(answer)
    reader = EndpointReader(server.url, "perception", timeout_s=0.2)
    with pytest.raises(ModelError, match=r"no answer within 0\.2 s"):
        await asyncio.wait_for(reader.read_async([view("(QA)")] * 200), 5)
    gone.set()


TOKENS = LabelTokens(
    words=LETTERS,
    labels=tuple((100 + index,) for index in range(len(TASKS))),
    middle=(5, 6),
    bins=tuple(range(200, 220)),
    closing=(7,),
)
DETAILS = LmDetails(
    kind="causal",
    weights="adapter",
    base="base",
    excerpt_chars=100,
    max_tokens=512,
    tokens=TOKENS,
    task_temperature=2.0,
    length_temperature=1.0,
)


async def test_what_is_served_is_asked_and_read_as_its_card_says(serve, tmp_path):
    async def answer(document: dict) -> web.Response:
        tops = [
            {"token_id:102": -0.1, "token_id:100": -2.4},
            {"token_id:5": 0.0},
            {"token_id:6": 0.0},
            {"token_id:210": 0.0},
            {"token_id:7": 0.0},
        ]
        tokens = ["token_id:102", "token_id:5", "token_id:6", "token_id:210", "token_id:7"]
        return web.json_response(
            {"choices": [{"index": 0, "text": f'C{MIDDLE}k"}}', "logprobs": {"tokens": tokens, "top_logprobs": tops}}]}
        )

    (tmp_path / "weights").write_text("w")
    details = {name: getattr(DETAILS, name) for name in DETAILS.__struct_fields__}
    details["tokens"] = {name: getattr(TOKENS, name) for name in TOKENS.__struct_fields__}
    # Cards of earlier versions have these, too.
    details["tokens"] |= {"first_texts": LETTERS, "bin_texts": BIN_WORDS}
    write_card(tmp_path, ModelCard(kind="perception", format="transformers", details=details))
    server = await serve(answer)
    reader = open_endpoint(server.url, "perception", "", tmp_path)
    (reading,) = await reader.read_async([view("x" * 1000)])
    asked = server.asked[0]
    assert asked["logprob_token_ids"] == [*TOKENS.firsts, *TOKENS.bins]
    assert len(asked["prompt"][0]) < 350, "the excerpt is cut as in training"
    odds = math.exp((-0.1 + 2.4) / 2.0)
    assert reading.probabilities[2] / reading.probabilities[0] == pytest.approx(odds), "the temperature of the card"
    assert reading.log_lengths[MEDIAN] == pytest.approx(10.5 * math.log(40_000) / 20, abs=0.3)


def test_an_endpoint_without_a_model_name_is_refused():
    with pytest.raises(ModelError, match=r"agents\.perception_endpoint_model is empty; allowed: the name"):
        open_endpoint("http://127.0.0.1:1", "")
