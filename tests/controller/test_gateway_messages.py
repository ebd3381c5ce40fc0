"""Anthropic's Messages API: queued and counted like chat completions, with that API's events and errors, the gateway's own ones too."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import MODEL, TWO_TENANTS, eventually, gateway_config, running
from scripted_kit import before, breakers, named, named_events, only

from hmas.controller.config.schema import SchedulerConfig
from hmas.controller.core.types import OutcomeKind

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
START = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3, "output_tokens": 0}}}
DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}


def ask(text: str = "hello there", *, tokens: int = 8, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "max_tokens": 100, "messages": messages, "sim": {"output_tokens": tokens}} | fields


async def test_streams_are_passed_on_and_counted(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(ask(stream=True), PATH, headers={"anthropic-version": "2023-06-01", "x-vllm-priority": "-99"})
        (completion,) = await rig.completions()
        assert rig.balanced()
        (head,) = rig.sims[0].heads
    events = named_events(answer)
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    assert sum(event["type"] == "content_block_delta" for event in events) == 8
    assert events[-2]["usage"]["output_tokens"] == 8
    assert (completion.outcome, completion.output_tokens) == (OutcomeKind.COMPLETED, 8)
    assert head["anthropic-version"] == "2023-06-01"
    assert "x-vllm-priority" not in head, "vLLM would take it for the gateway's"


async def test_whole_answers_and_counts_of_tokens(tmp_path: Path):
    async with running(tmp_path) as rig:
        whole = await rig.post(ask(), PATH)
        counted = await rig.post({"model": MODEL, "messages": [{"role": "user", "content": "hello there"}]}, COUNT)
        (completion,) = await rig.completions()
    assert (whole.json["type"], whole.json["stop_reason"], whole.json["usage"]["output_tokens"]) == ("message", "end_turn", 8)
    assert completion.output_tokens == 8
    assert counted.json["input_tokens"] == whole.json["usage"]["input_tokens"]
    assert completion.outcome is OutcomeKind.COMPLETED


async def test_errors_of_the_gateway_have_the_form_of_the_api(tmp_path: Path):
    guarded: dict[str, Any] = {"tenants": TWO_TENANTS, "gateway": gateway_config(no_auth=False)}
    async with running(tmp_path, **guarded) as rig:
        key = {"x-api-key": "sk-acme"}
        answers = {
            "authentication_error": await rig.post(ask(), PATH),
            "invalid_request_error": await rig.post(ask(messages=[]), PATH, headers=key),
            "not_found_error": await rig.post(ask(model="other"), PATH, headers=key),
            "permission_error": await rig.post(ask(), PATH, headers={**key, "x-gateway-inference-fairness-id": "zeta"}),
        }
        counted = await rig.post({"model": "other", "messages": []}, COUNT, headers=key)
        batches = await rig.post({}, "/v1/messages/batches", headers=key)
    assert [answer.status for answer in answers.values()] == [401, 400, 404, 403]
    for kind, answer in answers.items():
        assert (answer.json["type"], answer.error["type"]) == ("error", kind)
        assert answer.error["message"]
        assert answer.error["code"]
    assert (counted.status, counted.json["type"]) == (404, "error")
    assert (batches.status, batches.json["type"], batches.error["code"]) == (404, "error", "unknown_path")


async def test_a_full_queue_too(tmp_path: Path):
    settings = SchedulerConfig(policy="fcfs", n_run=1, queue_limit=1, evict_lower_ranked=False, tick_s=0.02)
    async with running(tmp_path, scheduler=settings) as rig:
        busy = [asyncio.create_task(rig.post(ask(f"n {number}", tokens=3500, max_tokens=4000), PATH)) for number in range(2)]
        await eventually(lambda: rig.gateway.scheduler.counts().queued == 1)
        answer = await rig.post(ask(), PATH)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
    assert (answer.status, answer.json["type"], answer.error["type"]) == (429, "error", "rate_limit_error")
    assert "retry-after" in answer.headers


async def test_an_engines_error_in_another_form_is_converted(tmp_path: Path):
    """vLLM reports a body that it cannot read in OpenAI's form, on this path too."""
    own = b'{"error":{"message":"1 validation error","type":"Bad Request","param":"max_tokens","code":400}}'
    async with before(tmp_path, lambda _: (400, "application/json", own)) as (rig, _):
        answer = await rig.post(ask(), PATH)
        assert await only(rig) == (OutcomeKind.REJECTED, 400)
    assert (answer.status, answer.json["type"]) == (400, "error")
    assert answer.error == {"type": "invalid_request_error", "message": "1 validation error", "param": "max_tokens"}


async def test_an_engines_error_in_the_form_of_the_api_is_its_own(tmp_path: Path):
    own = b'{"type":"error","error":{"type":"BadRequestError","message":"too long"}}'
    async with before(tmp_path, lambda _: (400, "application/json", own)) as (rig, _):
        answer = await rig.post(ask(), PATH)
    assert (answer.status, answer.body) == (400, own)


WRAPPED = """2 validation errors for ChatCompletionStreamResponse
model
  Field required [type=missing, input_value={'error': {'message': 'Gr...am': None, 'code': %d}}, input_type=dict]"""
EARLY_ERRORS = [
    ("invalid_request_error", "no", 400, 1),
    ("overloaded_error", "no", 502, 2),
    ("internal_error", WRAPPED % 400, 400, 1),
    ("internal_error", WRAPPED % 500, 502, 2),
    ("internal_error", "no 'code': 400}}", 502, 2),
    ("api_error", WRAPPED % 400, 502, 2),
]


@pytest.mark.parametrize(("kind", "message", "status", "tries"), EARLY_ERRORS)
async def test_an_error_event_before_the_first_token(tmp_path: Path, kind: str, message: str, status: int, tries: int):
    error = {"type": "error", "error": {"type": kind, "message": message}}
    async with before(tmp_path, lambda _: (200, "text/event-stream", named(START, error)), engines=2) as (rig, asked):
        answer = await rig.post(ask(stream=True), PATH)
    assert (answer.status, answer.json["type"], len(asked)) == (status, "error", tries)
    assert message in answer.error["message"]


async def test_an_engine_that_breaks_off_gives_an_error_event(tmp_path: Path):
    async with before(tmp_path, lambda _: (200, "text/event-stream", named(START, DELTA))) as (rig, _):
        answer = await rig.post(ask(stream=True), PATH)
        assert (await only(rig))[0] is OutcomeKind.FAILED
        assert breakers(rig) == {("closed", 1)}
    events = named_events(answer)
    assert events[:2] == [START, DELTA]
    assert (events[2]["type"], events[2]["error"]["type"]) == ("error", "api_error")
    assert b"[DONE]" not in answer.body


async def test_an_aborted_answer_is_no_answer(tmp_path: Path):
    whole = b'{"type":"message","id":"m","role":"assistant","content":[],"stop_reason":null,"usage":{"output_tokens":1}}'
    async with before(tmp_path, lambda _: (200, "application/json", whole)) as (rig, _):
        answer = await rig.post(ask(), PATH)
        assert (await only(rig))[0] is OutcomeKind.FAILED
    assert answer.status == 502
