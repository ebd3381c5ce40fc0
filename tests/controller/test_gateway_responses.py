"""OpenAI's Responses API: queued and counted like chat completions, and follow-ups go where the response is kept."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import openai
import orjson
import pytest
from bad_engines import metric
from gateway_kit import MODEL, TWO_TENANTS, eventually, gateway_config, running, start_sim
from scripted_kit import before, breakers, named, named_events, only
from typing_kit import known

from hmas.controller.config.section import ModelConfig, TenantConfig
from hmas.controller.core.types import OutcomeKind
from hmas.controller.gateway.requests.apis import kept_responses

PATH = "/v1/responses"
CREATED = {"type": "response.created", "response": {"id": "resp_1"}}
DELTA = {"type": "response.output_text.delta", "delta": "a"}


def ask(text: str = "hello there", *, tokens: int = 8, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": text, "sim": {"output_tokens": tokens}} | fields


def openai_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="sk-acme", max_retries=0)


async def test_streams_are_passed_on_counted_and_explained(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(ask(stream=True), PATH, headers={"x-request-id": "mine", "x-slo-ttft-ms": "5000"})
        (completion,) = await rig.completions()
        told = (await rig.admin("GET", "/admin/requests/mine")).json
        assert rig.balanced()
        (body,) = rig.sims[0].bodies
    events = named_events(answer)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert sum(event["type"] == "response.output_text.delta" for event in events) == 8
    assert events[-1]["response"]["usage"]["output_tokens"] == 8
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["x-request-id"], answer.headers["x-hmas-instance"]) == ("mine", "sim-1")
    assert (completion.outcome, completion.output_tokens, completion.slo_met) == (OutcomeKind.COMPLETED, 8, True)
    assert completion.ttft_ms > 0
    assert told["attempts"][0]["instance"] == "sim-1"
    assert b'"sim"' in body


async def test_a_whole_answer_is_the_engines_own(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(ask(), PATH)
        async with rig.session.get(f"{rig.sims[0].url}{PATH}/{answer.json['id']}") as response:
            kept = await response.json()
        (completion,) = await rig.completions()
    assert answer.json == kept
    assert (completion.output_tokens, completion.outcome) == (8, OutcomeKind.COMPLETED)


async def test_the_openai_package(tmp_path: Path):
    guarded: dict[str, Any] = {"tenants": TWO_TENANTS, "gateway": gateway_config(no_auth=False)}
    async with running(tmp_path, **guarded) as rig, openai_client(rig.url) as client:
        whole = await client.responses.create(model=MODEL, input="hello", max_output_tokens=4)
        again = await client.responses.create(model=MODEL, input="go on", previous_response_id=whole.id, max_output_tokens=4)
        stream = await client.responses.create(model=MODEL, input="hi", max_output_tokens=4, stream=True)
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        assert (await client.responses.retrieve(whole.id)).output_text == whole.output_text
        await client.responses.delete(whole.id)
        with pytest.raises(openai.NotFoundError, match="not found"):
            await client.responses.retrieve(whole.id)
        with pytest.raises(openai.BadRequestError, match="Cannot cancel"):
            await client.responses.cancel(again.id)
        with pytest.raises(openai.BadRequestError, match="max_output_tokens is 0"):
            await client.responses.create(model=MODEL, input="x", max_output_tokens=0)
    assert whole.output_text
    assert known(again.usage).input_tokens > known(whole.usage).input_tokens
    assert len(texts) == 4


async def test_follow_ups_go_to_the_instance_that_keeps_the_response(tmp_path: Path):
    async with running(tmp_path, engines=3) as rig:
        first = await rig.post(ask(), PATH)
        holder, previous = first.headers["x-hmas-instance"], first.json["id"]
        busy = [asyncio.create_task(rig.post(ask(f"else {number}", tokens=60), PATH)) for number in range(6)]
        answers = await asyncio.gather(*(rig.post(ask("and now", previous_response_id=previous), PATH) for _ in range(8)))
        streamed = await rig.post(ask("and now", previous_response_id=previous, stream=True), PATH)
        later = named_events(streamed)[-1]["response"]["id"]
        chained = await rig.post(ask("go on", previous_response_id=later), PATH)
        read = await rig.get(f"{PATH}/{later}")
        await asyncio.gather(*busy)
        assert rig.balanced()
    for answer in (*answers, streamed, chained, read):
        assert (answer.status, answer.headers["x-hmas-instance"]) == (200, holder)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_follow_up_continues_counts_as_its_prompt(tmp_path: Path, *, stream: bool):
    async with running(tmp_path) as rig:
        previous: dict[str, Any] = {}
        totals = []
        for text in ("many words " * 200, "go on", "and on"):
            answer = await rig.post(ask(text, tokens=40, stream=stream, **previous), PATH)
            response = named_events(answer)[-1]["response"] if stream else answer.json
            totals.append(response["usage"]["total_tokens"])
            previous = {"previous_response_id": response["id"]}
        prompts = [completion.prompt_tokens for completion in await rig.completions()]
    assert 200 < totals[0] < totals[1] < totals[2]
    assert totals[0] < prompts[1] < totals[0] + 50
    assert totals[1] < prompts[2] < totals[1] + 50


async def test_what_a_follow_up_says_again_and_what_was_only_thought_count_once(tmp_path: Path):
    usage = {"input_tokens": 3000, "output_tokens": 2000, "total_tokens": 5000, "output_tokens_details": {"reasoning_tokens": 1900}}
    answer = {"id": "resp_1", "object": "response", "status": "completed", "output": [], "usage": usage}
    async with before(tmp_path, lambda _: (200, "application/json", orjson.dumps(answer))) as (rig, _):
        again: dict[str, Any] = {"instructions": "Answer in one sentence. " * 500}
        await rig.post(ask("What is a tower?", **again), PATH)
        await rig.post(ask("And a bridge?", previous_response_id="resp_1", **again), PATH)
        first, second = [completion.prompt_tokens for completion in await rig.completions()]
    assert first > 2000
    assert 3100 < second < 3150, "the kept conversation, and the new question"


async def test_a_background_response_is_charged_what_is_expected_and_then_what_it_cost(tmp_path: Path):
    answer: dict[str, Any] = {"id": "resp_1", "object": "response", "status": "queued", "output": [], "usage": None}
    tenants = {"default": TenantConfig(tokens_per_minute=1, burst_tokens=10_000)}
    async with before(tmp_path, lambda _: (200, "application/json", orjson.dumps(answer)), tenants=tenants) as (rig, _):

        async def left() -> int:
            return int((await rig.post(ask(background=True, max_output_tokens=50), PATH)).headers["x-ratelimit-remaining-tokens"])

        first, second = await left(), await left()
        usage = {"input_tokens": 9, "output_tokens": 1000, "total_tokens": 1009}
        answer |= {"status": "in_progress", "usage": usage}
        await rig.get(f"{PATH}/resp_1")
        answer |= {"status": "completed"}
        for _ in range(2):
            await rig.get(f"{PATH}/resp_1")
        answer |= {"id": "resp_2", "status": "queued", "usage": None}
        third = await left()
        await rig.post(ask(previous_response_id="resp_1"), PATH)
        prompt_tokens = (await rig.completions())[-1].prompt_tokens
    assert 50 <= first - second < 80
    assert second - third == (first - second) + 950
    assert prompt_tokens > 1009, "what the response says of itself counts for what continues it, too"


async def test_a_query_about_a_response_goes_to_its_engine(tmp_path: Path):
    answer = {"id": "resp_1", "object": "response", "status": "completed", "output": [], "usage": {"input_tokens": 1, "output_tokens": 1}}
    async with before(tmp_path, lambda _: (200, "application/json", orjson.dumps(answer))) as (rig, _):
        await rig.post(ask(), PATH)
        plain = await rig.get(f"{PATH}/resp_1")
        asked = await rig.get(f"{PATH}/resp_1/input_items?after=x%20y&limit=2&stream=false")
        streamed = await rig.get(f"{PATH}/resp_1?stream=true")
    assert plain.json == answer | {"asked": f"{PATH}/resp_1"}
    assert asked.json["asked"] == f"{PATH}/resp_1/input_items?after=x%20y&limit=2&stream=false"
    assert (streamed.status, streamed.error["param"]) == (400, "stream")


async def test_a_response_belongs_to_its_tenant(tmp_path: Path):
    async with running(tmp_path, tenants=TWO_TENANTS, gateway=gateway_config(no_auth=False)) as rig:
        acme, zeta = {"x-api-key": "sk-acme"}, {"x-api-key": "sk-zeta"}
        kept = (await rig.post(ask(), PATH, headers=acme)).json["id"]
        others = await rig.get(f"{PATH}/{kept}", headers=zeta)
        follow = await rig.post(ask(previous_response_id=kept), PATH, headers=zeta)
        nobody = await rig.get(f"{PATH}/{kept}")
        own = await rig.get(f"{PATH}/{kept}", headers=acme)
    assert (others.status, others.error["code"], others.error["param"]) == (404, "response_not_found", "response_id")
    assert (follow.status, follow.error["code"], follow.error["param"]) == (404, "previous_response_not_found", "previous_response_id")
    assert (nobody.status, own.status) == (401, 200)


async def test_a_follow_up_for_a_model_that_the_holder_does_not_serve_is_refused_at_once(tmp_path: Path):
    async with running(tmp_path) as rig:
        kept = (await rig.post(ask(), PATH)).json["id"]
        answer = await asyncio.wait_for(rig.post(ask(model="mistyped", previous_response_id=kept), PATH), 5)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
        models = {"old-name": ModelConfig(failover=[MODEL])}
        rig.gateway.reload(msgspec.structs.replace(rig.gateway.config, models=models))
        followed = await rig.post(ask(model="old-name", previous_response_id=kept), PATH)
        assert (followed.status, followed.headers["x-hmas-served-model"]) == (200, MODEL)
        assert rig.balanced()


async def test_a_response_is_gone_with_its_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_responses, "ACCEPT_GRACE_S", 0.0)
    sims = [await start_sim("sim-1"), await start_sim("sim-2")]
    async with running(tmp_path, sims=sims) as rig:
        first = await rig.post(ask(), PATH)
        holder, kept = first.headers["x-hmas-instance"], first.json["id"]
        await next(sim for sim in sims if sim.name == holder).kill()
        await eventually(lambda: not rig.gateway.fleet.instances[holder].healthy)
        follow = await rig.post(ask(previous_response_id=kept), PATH)
        read = await rig.get(f"{PATH}/{kept}")
        unknown = await rig.post(ask(previous_response_id="resp_nothing"), PATH)
        other = await rig.post(ask(), PATH)
        assert rig.balanced()
    for answer in (follow, read, unknown):
        assert answer.status == 404
        assert "not found" in answer.error["message"]
    assert holder in follow.error["message"]
    assert other.status == 200


async def test_what_waits_for_its_instance_ends_when_that_goes_down(tmp_path: Path):
    """Another instance has room: the follow-up may not go there, and does not wait for ever."""
    sims = [await start_sim("sim-1"), await start_sim("sim-2")]
    async with running(tmp_path, sims=sims) as rig:
        first = await rig.post(ask(), PATH)
        holder = first.headers["x-hmas-instance"]
        held = next(sim for sim in sims if sim.name == holder)
        full = [asyncio.create_task(rig.post(ask(f"n {number}", tokens=2000), PATH)) for number in range(40)]
        await eventually(lambda: rig.gateway.scheduler.queued > 0)
        follow = asyncio.create_task(rig.post(ask(previous_response_id=first.json["id"]), PATH))
        await eventually(lambda: any(live.only_on for live in rig.gateway.manager.active.values()))
        await held.kill()
        answer = await follow
        for task in full:
            task.cancel()
        await asyncio.gather(*full, return_exceptions=True)
    assert answer.status == 503
    assert holder in answer.error["message"]


async def test_an_engine_that_fails_what_is_asked_about_its_response_is_counted(tmp_path: Path):
    async with running(tmp_path) as rig:
        kept = (await rig.post(ask(), PATH)).json["id"]
        await rig.sims[0].kill()
        answer = await rig.get(f"{PATH}/{kept}")
        assert await metric(rig, 'hmas_engine_errors_total{instance="sim-1"}') == 1.0
    assert (answer.status, answer.error["code"]) == (502, "engine_error")


async def test_paths_and_methods_of_a_response(tmp_path: Path):
    async with running(tmp_path) as rig:
        kept = (await rig.post(ask(), PATH)).json["id"]
        put = await rig.post({}, f"{PATH}/{kept}")
        odd = await rig.get(f"{PATH}/{kept}/elsewhere")
        items = await rig.get(f"{PATH}/{kept}/input_items")
        bad = await rig.post(ask(previous_response_id=5), PATH)
    assert (put.status, put.headers["allow"]) == (405, "GET, DELETE")
    assert (odd.status, odd.error["code"]) == (404, "unknown_path")
    assert (items.status, items.error["code"]) == (501, "unsupported_by_engine"), "the embedded engine has no such path"
    assert (bad.status, bad.error["param"]) == (400, "previous_response_id")


async def test_the_table_of_responses_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_responses, "MAX_KEPT", 3)
    async with running(tmp_path) as rig:
        ids = [(await rig.post(ask(f"n {number}", tokens=1), PATH)).json["id"] for number in range(3)]
        await rig.get(f"{PATH}/{ids[0]}")
        await rig.post(ask(tokens=1), PATH)
        found = [(await rig.get(f"{PATH}/{kept}")).status for kept in ids]
    assert found == [200, 404, 200], "the one used least recently was forgotten"


async def test_an_error_before_the_first_token_is_no_stream(tmp_path: Path):
    error = {"type": "error", "code": "400", "message": "no such format", "param": "text", "sequence_number": 1}
    async with before(tmp_path, lambda _: (200, "text/event-stream", named(CREATED, error)), engines=2) as (rig, asked):
        answer = await rig.post(ask(stream=True), PATH)
        assert await only(rig) == (OutcomeKind.REJECTED, 400)
        assert breakers(rig) == {("closed", 0)}
    assert (answer.status, answer.error["message"], answer.error["param"], len(asked)) == (400, "no such format", "text", 1)


async def test_a_failure_before_the_first_token_is_tried_elsewhere(tmp_path: Path):
    """The first events of a stream tell nothing yet: they are held back, so another engine can still answer."""
    failed = {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "out of memory"}}}
    ended = {"type": "response.completed", "response": {"id": "resp_1", "usage": {"output_tokens": 1}}}

    def answers(_: dict[str, Any]) -> tuple[int, str, bytes]:
        return 200, "text/event-stream", named(CREATED, failed) if len(asked) == 1 else named(CREATED, DELTA, ended)

    async with before(tmp_path, answers, engines=2) as (rig, asked):
        answer = await rig.post(ask(stream=True), PATH)
        assert await only(rig) == (OutcomeKind.COMPLETED, 200)
    assert named_events(answer) == [CREATED, DELTA, ended]
    assert len(asked) == 2


async def test_an_engine_that_breaks_off_gives_an_error_event(tmp_path: Path):
    async with before(tmp_path, lambda _: (200, "text/event-stream", named(CREATED, DELTA))) as (rig, _):
        answer = await rig.post(ask(stream=True), PATH)
        assert (await only(rig))[0] is OutcomeKind.FAILED
    events = named_events(answer)
    assert events[:2] == [CREATED, DELTA]
    assert (events[2]["type"], events[2]["sequence_number"], events[2]["code"]) == ("error", 2, "engine_protocol_error")
    assert events[2]["message"] == events[2]["error"]["message"]


async def test_a_whole_response_that_failed_counts_as_a_failure(tmp_path: Path):
    body = b'{"object":"response","id":"resp_1","status":"failed","error":{"code":"server_error","message":"oops"},"output":[]}'
    async with before(tmp_path, lambda _: (200, "application/json", body)) as (rig, _):
        answer = await rig.post(ask(), PATH)
        assert await only(rig) == (OutcomeKind.FAILED, 200)
        assert breakers(rig) == {("closed", 1)}
    assert (answer.status, answer.body) == (200, body)
