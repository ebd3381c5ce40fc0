"""What the SGLang adapter makes of answers that SGLang 0.5.23 gave under load (`sglang_answers.json`), and of bodies on their way to it."""

import copy
import json
from pathlib import Path

import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from hmas.engines.base import Knobs
from hmas.engines.errors import EngineProtocolError
from hmas.engines.registry import connect_engine
from hmas.engines.sglang.adapter import with_own_fields
from hmas.engines.sglang.answers import Counters, Loads, ServerInfo, parse_answer, parse_counters

RECORDED = orjson.loads(Path(__file__).with_name("sglang_answers.json").read_bytes())
RID = "0123456789abcdef0123456789abcdef"
OWN = {"rid": RID, "priority": -2}


class Replay:
    """SGLang's routes with its recorded answers, for what cannot be had of one server: other flags and other sizes."""

    def __init__(self):
        self.answers = copy.deepcopy(RECORDED)
        self.cap_answer = (200, b"[true]")
        self.bodies = []
        self.url = ""

    async def serve(self, request):
        answers = {"/v1/loads": "loads", "/server_info": "server_info"}
        if request.path in answers:
            return web.json_response(self.answers[answers[request.path]])
        if request.path == "/metrics":
            return web.Response(text="\n".join(self.answers["metrics"]))
        if request.path == "/set_internal_state":
            self.bodies.append(orjson.loads(await request.read()))
            return web.Response(status=self.cap_answer[0], body=self.cap_answer[1])
        if request.path in {"/v1/completions", "/v1/embeddings"}:
            self.bodies.append(orjson.loads(await request.read()))
            return web.json_response({})
        return web.json_response({"detail": "Not Found"}, status=404)


@pytest.fixture
async def replay():
    replay = Replay()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", replay.serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    replay.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield replay
    await runner.cleanup()


@pytest.mark.parametrize("disabled", [False, True])
async def test_whether_it_caches_prefixes_is_read_from_its_settings(replay, disabled):
    replay.answers["server_info"]["disable_radix_cache"] = disabled
    engine = await connect_engine(name="s", url=replay.url)
    assert (await engine.snapshot(5.0)).caches_prefixes is not disabled
    await engine.close()


async def test_it_is_found_by_its_answers(replay):
    engine = await connect_engine(name="s", url=replay.url)
    snapshot = await engine.snapshot(5.0)
    assert (engine.capabilities.kind, engine.capabilities.version) == ("sglang", "0.5.23")
    assert (snapshot.running, snapshot.waiting, snapshot.kv_capacity_tokens) == (4, 5, 16384)
    assert snapshot.kv_usage == pytest.approx(208 / 16384)
    assert snapshot.caches_prefixes is None, "it does not say, where its settings lack the flag"
    assert (snapshot.max_num_seqs, snapshot.max_num_seqs_ceiling, snapshot.max_num_batched_tokens) == (4, 8, 512)
    assert snapshot.prompt_tokens_total == 65170 + 21922, "whole prompts, with what was found cached"
    assert snapshot.generation_tokens_total > snapshot.preemptions_total > 0
    await engine.close()


@pytest.mark.parametrize(("flags", "sent"), [({}, -7), ({"schedule_low_priority_values_first": True}, 7)])
async def test_the_sign_of_the_priority_follows_its_flags(replay, flags, sent):
    replay.answers["server_info"] |= flags
    engine = await connect_engine(name="s", url=replay.url)
    for priority in (7, 0, 2**80):
        await (await engine.send("/v1/completions", b'{"model": "m", "priority": 3}', {}, request_id=RID, priority=priority)).close()
    assert [body["priority"] for body in replay.bodies] == [sent, 0, sent // 7 * (2**31 - 1)]
    await engine.close()


async def test_without_priorities_none_is_sent(replay):
    replay.answers["server_info"]["enable_priority_scheduling"] = False
    engine = await connect_engine(name="s", url=replay.url)
    assert not engine.capabilities.priority
    await (await engine.send("/v1/completions", b'{"model": "m", "priority": 3}', {}, request_id=RID, priority=7)).close()
    await (await engine.send("/v1/completions", b'{"model": "m"}', {}, request_id="short", priority=7)).close()
    assert replay.bodies == [{"model": "m", "rid": RID}, {"model": "m"}]
    await engine.close()


async def test_embeddings_have_no_id(replay):
    """SGLang wants a list of ids for a list of texts, and fails with 500 on a single one."""
    replay.answers["server_info"]["enable_priority_scheduling"] = False
    engine = await connect_engine(name="s", url=replay.url)
    await (await engine.send("/v1/embeddings", b'{"model": "m", "input": ["a", "b"], "rid": "0"}', {}, request_id=RID)).close()
    assert replay.bodies == [{"model": "m", "input": ["a", "b"]}]
    await engine.close()


@pytest.mark.parametrize("answer", [(200, b"[false]"), (200, b"[]"), (200, b"[true, false]"), (200, b"true"), (200, b"<html>"), (401, b"")])
async def test_a_cap_that_was_not_set_is_refused(replay, answer):
    engine = await connect_engine(name="s", url=replay.url)
    replay.cap_answer = answer
    report = await engine.apply_knobs(Knobs(n_run=6))
    assert report.applied == {}
    assert report.refused["n_run"]
    assert (await engine.snapshot(5.0)).max_num_seqs == 4
    await engine.close()


@pytest.mark.parametrize("several", ["ranks", "stages"])
async def test_one_number_is_no_cap_of_several_schedulers(replay, several):
    info = replay.answers["server_info"]
    if several == "ranks":
        info["internal_states"] *= 2
        replay.answers["loads"]["loads"] *= 2
    else:
        info["pp_size"] = 2
    engine = await connect_engine(name="s", url=replay.url)
    assert engine.capabilities.live_knobs == ()
    assert "no knob is live" in engine.capabilities.control
    report = await engine.apply_knobs(Knobs(n_run=6))
    assert "a live cap needs one of each" in report.refused["n_run"]
    assert replay.bodies == []
    snapshot = await engine.snapshot(5.0)
    # Each stage holds a micro-batch of the cap's size; each rank holds the cap.
    assert (snapshot.max_num_seqs, snapshot.max_num_seqs_ceiling) == (8, 16 if several == "ranks" else 8)
    assert (snapshot.running, snapshot.kv_capacity_tokens) == ((8, 32768) if several == "ranks" else (4, 16384))
    await engine.close()


def test_what_sglang_does_not_answer_is_told():
    with pytest.raises(EngineProtocolError, match=r"somewhere .*num_running_reqs"):
        parse_answer({"loads": [{}]}, Loads, "somewhere")
    with pytest.raises(EngineProtocolError, match="pp_size"):
        parse_answer({"pp_size": "two"}, ServerInfo, "somewhere")


def test_counters_take_one_rank_of_a_group_and_no_nonsense():
    text = """sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 100.0
sglang:realtime_tokens_total{mode="decode",tp_rank="1"} 100.0
sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 7.0
sglang:realtime_tokens_total{mode="prefill_cache",tp_rank="0"} 50.0
sglang:realtime_tokens_total{mode="prefill_cache",tp_rank="1"} 50.0
sglang:time_to_first_token_seconds_count{priority="0"} 3.0
sglang:time_to_first_token_seconds_count{priority="5"} 2.0
sglang:time_to_first_token_seconds_sum{priority="5"} 9.0
sglang:num_retracted_requests_total{tp_rank="0"} 4.0
sglang:num_retracted_requests_total{tp_rank="0"} NaN
sglang:num_retracted_requests_total{tp_rank="0"} many
sglang:num_retracted_requests_to"""
    assert parse_counters(text.encode()) == Counters(output_tokens=109, cached_tokens=50, retracted=4, live=True)
    assert parse_counters(b"") == Counters()


def test_counters_add_the_groups_of_data_parallel_attention():
    labels = 'mode="decode",dp_rank="{0}",tp_rank="{1}",moe_ep_rank="{1}"'
    ranks = [(0, 0, 10), (0, 1, 10), (1, 3, 5), (1, 2, 5)]
    text = "".join(f"sglang:realtime_tokens_total{{{labels.format(dp, tp)}}} {value}\n" for dp, tp, value in ranks)
    assert parse_counters(text.encode()).output_tokens == 15


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"model": "m"}', b'{"rid":"' + RID.encode() + b'","priority":-2,"model": "m"}'),
        (b' {\n "model": "m"}', None),
        (b"{}", None),
        (b'{"rid": "0", "model": "m"}', None),
        (b'{"priority": 99, "rid": ["a"], "model": "m"}', None),
        (b'{"r\\u0069d": "0", "model": "m"}', None),
        (b'{"messages": [{"content": "\\"rid\\": 1"}]}', None),
        (b'{"messages": [{"content": "caf\\u00e9", "rid": 5}]}', None),
        (b'{"messages": [{"content": "\\u4f60"}]}', b'{"rid":"' + RID.encode() + b'","priority":-2,"messages": [{"content": "\\u4f60"}]}'),
    ],
)
def test_our_own_id_and_priority_stand_in_every_body(body, sent):
    made = with_own_fields(body, OWN)
    assert sent is None or made == sent
    theirs = {name: value for name, value in orjson.loads(body).items() if name not in OWN}
    assert orjson.loads(made) == theirs | OWN
    assert made.count(b'"rid":"' + RID.encode()) == 1


def test_our_own_id_stands_in_a_body_that_is_nested_deeper_than_is_written():
    document = json.loads(with_own_fields(b'{"rid": "0", "a": ' + b"[" * 300 + b"]" * 300 + b"}", OWN))
    assert (document["rid"], document["priority"]) == (OWN["rid"], OWN["priority"])


@pytest.mark.parametrize("body", [b"", b"[1]", b'"rid"', b"{no json", b'{"rid": '])
def test_what_is_no_object_is_left_for_the_engine_to_refuse(body):
    assert with_own_fields(body, OWN) == body
    assert with_own_fields(body, {}) == body


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5) | st.just("rid"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rid", "priority", "a", "\\u0072id"]), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["rid", "priority", "model", "rid ", "x\\"]), JSON, max_size=5))
def test_no_body_passes_a_clients_id(document):
    made = orjson.loads(with_own_fields(orjson.dumps(document), OWN))
    assert made == {name: value for name, value in document.items() if name not in OWN} | OWN
    assert "rid" not in orjson.loads(with_own_fields(orjson.dumps(document), {}))
