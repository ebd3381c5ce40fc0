"""What a client gets when all is well: streams, whole answers, and nothing touched on the way."""

import asyncio
import re
from pathlib import Path

import orjson
import pytest
from gateway_kit import MODEL, chat, delivered, gateway_config, running

from hmas.controller.core.messages import REQUESTS, RequestNotice, SystemSnapshot
from hmas.controller.core.types import OutcomeKind

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


async def test_a_stream_arrives_whole_and_is_measured(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(chat(tokens=12, stream_options={"include_usage": True}))
        (completion,) = await rig.completions()
        assert rig.balanced()
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.events[-1] == "[DONE]"
    usage = next(event["usage"] for event in answer.events if event != "[DONE]" and event.get("usage"))
    assert usage["completion_tokens"] == completion.output_tokens == 12
    assert completion.outcome is OutcomeKind.COMPLETED
    assert 0 < completion.service_ttft_ms <= completion.ttft_ms < completion.total_ms
    assert completion.tpot_ms > 0
    assert completion.queue_ms >= 0
    assert (completion.instance, completion.policy, completion.status) == ("sim-1", "fcfs", 200)
    assert completion.slo_met


async def test_tokens_are_counted_without_usage(tmp_path: Path):
    async with running(tmp_path) as rig:
        await rig.post(chat(tokens=9))
        (completion,) = await rig.completions()
    assert completion.output_tokens == 9


async def test_a_whole_answer(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(chat(tokens=5, stream=False))
        (completion,) = await rig.completions()
    assert answer.json["choices"][0]["message"]["content"]
    assert answer.json["usage"]["completion_tokens"] == completion.output_tokens == 5
    # Its first token cannot be seen, so it is judged by when its last was due.
    assert completion.ttft_ms == -1
    assert completion.slo_met


async def test_a_whole_answer_after_its_last_token_was_due_misses(tmp_path: Path):
    async with running(tmp_path) as rig:
        await rig.post(chat(tokens=200, stream=False), headers={"x-slo-ttft-ms": "100", "x-slo-tpot-ms": "1"})
        (completion,) = await rig.completions()
    # The default tenant's least TPOT target is 5 ms, so 200 tokens were due after 100 + 199 x 5 ms.
    assert completion.slo_met == (completion.total_ms <= 100 + 199 * 5)
    assert (completion.ttft_slo_ms, completion.tpot_slo_ms) == (100, 5)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_body_reaches_the_engine_byte_for_byte(tmp_path: Path, path: str):
    text = {"messages": [{"role": "user", "content": "héllo"}]} if "chat" in path else {"prompt": "héllo"}
    body = b'{ "zz_unknown": {"a": [1, 2.50, null]},\n  ' + orjson.dumps({"model": MODEL, "sim": {"output_tokens": 2}, **text})[1:]
    async with running(tmp_path) as rig:
        answer = await rig.post(body, path)
        assert rig.sims[0].bodies == [body]
    assert answer.status == 200


async def test_the_engines_bytes_reach_the_client(tmp_path: Path):
    """The same request straight and through the gateway differs in ids and times alone."""
    body = orjson.dumps(chat("same prompt", tokens=6, logprobs=True, top_logprobs=2))

    def bare(data: bytes) -> bytes:
        return re.sub(rb'"(id|created)":\s*("[^"]*"|\d+)', b"", data)

    async with running(tmp_path) as rig:
        through = await rig.post(body)
        async with rig.session.post(rig.sims[0].url + "/v1/chat/completions", data=body) as response:
            straight = await response.read()
    assert bare(through.body) == bare(straight)
    assert any(choice.get("logprobs") for event in through.events[:-1] for choice in event["choices"])


async def test_tool_calls_survive(tmp_path: Path):
    choice = {"type": "function", "function": {"name": "get_weather"}}
    async with running(tmp_path) as rig:
        streamed = await rig.post(chat(tools=[TOOL], tool_choice=choice))
        whole = await rig.post(chat(tools=[TOOL], tool_choice=choice, stream=False))
        notices = [message for message in await rig.bus.latest(REQUESTS, 10) if isinstance(message, RequestNotice)]
    deltas = [choice["delta"] for event in streamed.events[:-1] for choice in event["choices"]]
    assert any(call["function"].get("name") == "get_weather" for delta in deltas for call in delta.get("tool_calls", []))
    assert whole.json["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert all(notice.has_tools and notice.turns == 1 for notice in notices)


async def test_response_headers(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(chat(), headers={"x-request-id": "my-id.1"})
        unsafe = await rig.post(chat(), headers={"x-request-id": "a b"})
    assert answer.headers["x-request-id"] == "my-id.1"
    assert re.fullmatch("[0-9a-f]{32}", unsafe.headers["x-request-id"])
    assert answer.headers["x-hmas-policy"] == "fcfs"
    assert answer.headers["x-hmas-instance"] == "sim-1"
    assert 0 <= float(answer.headers["x-hmas-queue-ms"]) < 1000
    assert 0 <= float(answer.headers["x-hmas-overhead-ms"]) < 1000
    assert answer.headers["x-ratelimit-limit-requests"] == "6000"
    assert answer.headers["x-ratelimit-remaining-requests"] == "6000"


async def test_the_engine_gets_a_fixed_length_id_and_the_trace(tmp_path: Path):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"x-request-id": "mine", "traceparent": trace, "tracestate": "a=b", "authorization": "Bearer client-secret"}
    async with running(tmp_path) as rig:
        await rig.post(chat(), headers=headers)
        (head,) = rig.sims[0].heads
    assert re.fullmatch("[0-9a-f]{32}", head["x-request-id"])
    assert (head["traceparent"], head["tracestate"]) == (trace, "a=b")
    assert "authorization" not in head


async def test_embeddings_pass_through(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        answer = await rig.post({"model": MODEL, "input": "some text"}, "/v1/embeddings")
        missing = await rig.post({"model": "other", "input": "x"}, "/v1/embeddings")
        counts = rig.gateway.scheduler.counts()
        metrics = (await rig.get("/metrics")).body.decode()
    assert len(answer.json["data"][0]["embedding"]) > 0
    assert 'hmas_passthrough_requests_total{status="200"} 1.0' in metrics
    assert 'hmas_passthrough_requests_total{status="404"} 1.0' in metrics
    assert "hmas_passthrough_duration_seconds_count 1.0" in metrics
    assert 'hmas_passthrough_in_flight_requests{instance="sim-1"} 0.0' in metrics
    assert answer.headers["x-hmas-instance"] in {"sim-1", "sim-2"}
    assert missing.status == 404
    assert counts.arrived == 0, "they are not queued"


async def test_models_are_merged(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        answer = await rig.get("/v1/models")
        one = await rig.get(f"/v1/models/{MODEL}")
        none = await rig.get("/v1/models/nope")
    assert [entry["id"] for entry in answer.json["data"]] == [MODEL]
    assert one.json["id"] == MODEL
    assert (none.status, none.error["code"]) == (404, "model_not_found")


async def test_health_ready_and_metrics(tmp_path: Path):
    async with running(tmp_path) as rig:
        await rig.post(chat(tokens=4))
        health, ready, metrics = await rig.get("/health"), await rig.get("/ready"), await rig.get("/metrics")
    assert health.json == {"status": "ok"}
    assert (ready.status, ready.json) == (200, {"ready": True, "reasons": []})
    text = metrics.body.decode()
    assert 'hmas_requests_total{outcome="completed",tenant="default"} 1.0' in text
    assert 'hmas_engine_up{instance="sim-1"} 1.0' in text
    assert 'hmas_tokens_total{direction="output"} 4.0' in text
    assert 'hmas_ttft_seconds_count{tenant="default"} 1.0' in text
    samples = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(line.startswith(("hmas_", "process_")) for line in samples)


async def test_two_engines_share_the_work(tmp_path: Path):
    async with running(tmp_path, engines=2) as rig:
        await asyncio.gather(*(rig.post(chat(f"prompt {number}", tokens=30)) for number in range(8)))
        spread = {completion.instance for completion in await rig.completions()}
        assert rig.balanced()
    assert spread == {"sim-1", "sim-2"}


async def test_the_agents_are_told(tmp_path: Path):
    async with running(tmp_path) as rig:
        await rig.post(chat("translate this"), headers={"x-slo-ttft-ms": "900"})
        (notice,) = [message for message in await rig.bus.latest(REQUESTS, 10) if isinstance(message, RequestNotice)]
        async for deliveries in rig.bus.follow(["hmas:telemetry"]):
            snapshots = [message for message in delivered(deliveries) if isinstance(message, SystemSnapshot)]
            if snapshots:
                break
    assert notice.excerpt == "translate this"
    assert (notice.ttft_slo_ms, notice.tpot_slo_ms) == (900, 0)
    assert notice.prompt_tokens > 0
    assert snapshots[-1].instances[0].engine is not None


async def test_prompts_stay_inside_where_they_must(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(share_prompts=False)) as rig:
        await rig.post(chat("a secret"))
        (notice,) = [message for message in await rig.bus.latest(REQUESTS, 10) if isinstance(message, RequestNotice)]
    assert notice.excerpt == ""
    assert notice.prompt_chars == len("a secret")
