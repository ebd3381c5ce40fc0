"""The control plugin's own parts, without vLLM: what it reads, whom it lets in, and what it makes of a scheduler that is unlike today's."""

import json
from enum import Enum
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.engines.plugin.hmas_engine_plugin.access import refusal
from hmas.engines.plugin.hmas_engine_plugin.order import MAX_BODY_BYTES, Order, OrderError, parse_order
from hmas.engines.plugin.hmas_engine_plugin.vllm.control import Control
from hmas.engines.plugin.hmas_engine_plugin.vllm.core import handle

HUGE = b'{"knobs": {"n_run": ' + b"9" * 5000 + b"}}"


def test_a_whole_order():
    assert parse_order(b'{"knobs": {"n_run": 8, "token_budget": 64}}') == Order({"n_run": 8, "token_budget": 64})


@pytest.mark.parametrize(
    ("body", "field", "word"),
    [
        (b"", "body", "no JSON"),
        (b"\xff", "body", "no JSON"),
        (b"[" * 100_000, "body", "no JSON"),
        (HUGE, "body", "no JSON"),
        (b" " * (MAX_BODY_BYTES + 1), "body", "bytes"),
        (b"[1]", "body", "a list"),
        (b"null", "body", "null"),
        (b"{}", "body", "nothing to do"),
        (b'{"knobs": {}}', "body", "nothing to do"),
        (b'{"knobs": {"n_run": 1, "n_run": 2}}', "n_run", "twice"),
        (b'{"knob": {"n_run": 1}}', "knob", "no such field; allowed: knobs"),
        (b'{"knobs": {"n_run": 1}, "evict": ["a"]}', "evict", "no such field; allowed: knobs"),
        (b'{"knobs": {"n_run": 1}, "priorities": {"a": 1}}', "priorities", "no such field; allowed: knobs"),
        (b'{"knobs": [1]}', "knobs", "a list"),
        (b'{"knobs": {"speed": 1}}', "knobs.speed", "no such knob"),
        (b'{"knobs": {"n_run": true}}', "knobs.n_run", "true"),
        (b'{"knobs": {"n_run": "8"}}', "knobs.n_run", '"8"'),
        (b'{"knobs": {"n_run": 8.0}}', "knobs.n_run", "8.0"),
        (b'{"knobs": {"n_run": 1e400}}', "knobs.n_run", "whole number"),
        (b'{"knobs": {"n_run": null}}', "knobs.n_run", "null"),
        (b'{"knobs": {"n_run": NaN}}', "body", "NaN"),
        (b'{"knobs": {"n_run": -1}}', "knobs.n_run", "-1"),
        (b'{"knobs": {"n_run": 99999999999999999999999}}', "knobs.n_run", "18 digits"),
        (b'{"knobs": {"n_run": 4294967296}}', "knobs.n_run", "4294967296"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_a_wrong_order_is_named(body, field, word):
    with pytest.raises(OrderError) as caught:
        parse_order(body)
    assert word in caught.value.refused[field]
    assert all(len(name) < 100 and len(reason) < 250 for name, reason in caught.value.refused.items())


def test_every_fault_is_named_at_once_up_to_ten():
    with pytest.raises(OrderError) as caught:
        parse_order(json.dumps({f"x{i}": 1 for i in range(50)}).encode())
    assert len(caught.value.refused) == 10


VALUES = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner))
BODIES = st.dictionaries(st.sampled_from(["knobs", "evict", "x"]), VALUES).map(lambda value: json.dumps(value).encode())


@settings(max_examples=40)
@given(st.binary(max_size=300) | BODIES)
def test_no_body_gets_through_but_an_order(body):
    try:
        order = parse_order(body)
    except OrderError:
        return
    assert all(type(value) is int for value in order.knobs.values())


@pytest.mark.parametrize(
    ("token", "authorization", "client", "origin", "status"),
    [
        ("", None, "127.0.0.1", None, None),
        ("", None, "::1", None, None),
        ("", None, "::ffff:127.0.0.1", None, None),
        ("", "Bearer x", "10.0.0.1", None, 403),
        ("", None, None, None, 403),
        ("", None, "localhost.example", None, 403),
        ("", None, "127.0.0.1", "http://a.example", 403),
        ("s", "Bearer s", "10.0.0.1", None, None),
        ("s", "Bearer s", "10.0.0.1", "http://a.example", None),
        ("s", None, "127.0.0.1", None, 401),
        ("s", "Bearer ", "127.0.0.1", None, 401),
        ("s", "Bearer ss", "127.0.0.1", None, 401),
        ("s", "bearer s", "127.0.0.1", None, 401),
        ("s", "s", "127.0.0.1", None, 401),
        ("s", "Bearer \u00e9\u4e00", "127.0.0.1", None, 401),
    ],
)
def test_who_is_let_in(token, authorization, client, origin, status):
    found = refusal(token=token, authorization=authorization, client=client, origin=origin)
    assert (found and found[0]) == status


class Policy(Enum):
    """As vLLM's own."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Scheduler:
    """A scheduler as some version of vLLM might have it; without an attribute where `without` names it."""

    def __init__(self, *without, **config):
        self.max_num_running_reqs = 8
        self.max_num_active_reqs = 8
        self.max_num_scheduled_tokens = 512
        self.max_model_len = 2048
        self.scheduler_config = SimpleNamespace(enable_chunked_prefill=True, **config)
        self.policy = Policy.PRIORITY
        self.running, self.waiting = [], []
        for name in without:
            delattr(self, name)


def test_what_a_version_lacks_is_absent_and_the_rest_works():
    scheduler = Scheduler("max_num_active_reqs")
    old = Control(scheduler)
    assert set(old.state()["knobs"]) == {"token_budget"}
    assert "--scheduler-cls" in old.absent["n_run"]
    assert handle(SimpleNamespace(scheduler=scheduler), {"knobs": {"n_run": 2}})["refused"]
    assert old.obey({"token_budget": 64})["applied"] == {"token_budget": 64}


def test_a_version_without_a_cap_is_capped_step_by_step():
    scheduler = Scheduler("max_num_active_reqs")
    control = Control(scheduler, capped=True)
    assert control.obey({"n_run": 2})["applied"] == {"n_run": 2}
    scheduler.running = [1, 2, 3, 4]
    control.before_step()
    assert scheduler.max_num_running_reqs == 4, "never below what runs"
    scheduler.running = []
    control.before_step()
    assert scheduler.max_num_running_reqs == 2
    assert control.state()["knobs"]["n_run"] == {"value": 2, "min": 1, "max": 8, "start": 8, "step": 1}


def test_nothing_is_set_where_anything_is_refused():
    control = Control(scheduler := Scheduler())
    done = control.obey({"n_run": 2, "token_budget": 513})
    assert done["refused"] == {"knobs.token_budget": "513; allowed: 1 to 512"}
    assert (done["applied"], scheduler.max_num_active_reqs) == ({}, 8)


def test_it_says_whether_the_queue_is_ordered_by_priority():
    scheduler = Scheduler()
    assert Control(scheduler).state()["priority"] is True
    scheduler.policy = Policy.FCFS
    control = Control(scheduler)
    assert control.state()["priority"] is False
    assert control.absent == {"priority": "the queue's order is fcfs; start vLLM with --scheduling-policy priority"}
    assert control.obey({"n_run": 2})["applied"] == {"n_run": 2}
    assert Control(Scheduler("policy")).state()["priority"] is False


def test_it_counts_steps_and_who_runs_and_waits():
    scheduler = Scheduler()
    control = Control(scheduler, capped=True)
    vars(scheduler).update(running=[1], waiting=[2, 3], skipped_waiting=[4])
    control.after_step(SimpleNamespace(total_num_scheduled_tokens=16))
    assert control.state()["counters"] == {"steps": 1, "scheduled_tokens": 16, "running": 1, "waiting": 3}


@pytest.mark.parametrize(
    ("config", "attributes", "least"),
    [
        ({}, {}, 1),
        ({}, {"num_spec_tokens": 3}, 4),
        ({}, {"need_mamba_block_aligned_split": True, "block_size": 128}, 128),
        ({"disable_chunked_mm_input": True}, {"max_num_encoder_input_tokens": 4096}, 512),
    ],
)
def test_no_budget_can_leave_a_request_waiting_for_ever(config, attributes, least):
    scheduler = Scheduler(**config)
    vars(scheduler).update(attributes)
    assert Control(scheduler).knobs["token_budget"].low == least


def test_without_chunked_prefill_a_prompt_needs_the_whole_budget():
    scheduler = Scheduler()
    scheduler.scheduler_config.enable_chunked_prefill = False
    assert Control(scheduler).knobs["token_budget"].low == 512


def test_a_fault_is_told_and_takes_nothing_down():
    class Broken(Scheduler):
        def __setattr__(self, name, value):
            if name == "max_num_active_reqs" and value == 3:
                raise RuntimeError("gone")
            super().__setattr__(name, value)

    scheduler = Broken()
    done = handle(SimpleNamespace(scheduler=scheduler), {"knobs": {"token_budget": 64, "n_run": 3}})
    assert "gone" in done["refused"]["body"]
    assert (scheduler.max_num_scheduled_tokens, scheduler.max_num_active_reqs) == (512, 8), "all are set back"
    assert handle(SimpleNamespace(), None)["refused"]["body"]
