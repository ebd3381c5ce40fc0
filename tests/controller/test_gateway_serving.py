"""What a client gets when all is well: streams, whole answers, nothing touched on the way."""

import asyncio
from pathlib import Path

import orjson
import pytest
from gateway_kit import MODEL, chat, running

from controller.core.types import OutcomeKind


async def test_a_stream_arrives_whole_and_as_the_engine_sent_it(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(chat(tokens=12, stream_options={"include_usage": True}))
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.events[-1] == "[DONE]"
        usage = next(event["usage"] for event in answer.events if event != "[DONE]" and event.get("usage"))
        assert usage["completion_tokens"] == 12
        (completion,) = await rig.completions()
    assert completion.outcome is OutcomeKind.COMPLETED
    assert completion.output_tokens == 12
    assert completion.ttft_ms > 0 and completion.tpot_ms > 0
    assert completion.instance == "sim-1"
    assert completion.slo_met
