"""The SGLang plugin's own parts, without SGLang: its messages, its seal, its import watch, and schedulers unlike today's."""

import importlib
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_kit import known

from hmas.engines.plugin.hmas_engine_plugin.sglang import hooks
from hmas.engines.plugin.hmas_engine_plugin.sglang.control import CAP, Control
from hmas.engines.plugin.hmas_engine_plugin.sglang.imports import when_imported
from hmas.engines.plugin.hmas_engine_plugin.sglang.wire import READ, SEAL, Message, decode, encode, ensure_seal, new_serial

ENGINES = Path(__file__).resolve().parents[2] / "engines"


class Scheduler:
    """The attributes that the plugin looks at, as in SGLang 0.5.23."""

    def __init__(self, **others):
        self.max_running_requests = 8
        self.chunked_prefill_size = 512
        self.page_size = 1
        self.dllm_config = self.dynamic_chunk_sizer = self.truncation_align_size = None
        self.is_mixed_chunk = False
        self.enable_priority_scheduling = True
        self.tree_cache = SimpleNamespace(supports_mamba=lambda: False)
        self.waiting_queue = []
        self.running_batch = SimpleNamespace(reqs=[], batch_is_full=True)
        vars(self).update(others)


def control_of(scheduler, **parallel):
    settings = SimpleNamespace(**({CAP: 8, "num_dp_ranks": 1, "pp_size": 1} | parallel))

    def update(name, value):
        setattr(settings, name, value)
        return True

    return Control(scheduler, update, lambda: settings)


@given(knobs=st.dictionaries(st.sampled_from(["n_run", "token_budget"]), st.integers(0, 2**31 - 1)))
def test_an_order_comes_over_whole(knobs):
    message = Message(new_serial(), knobs)
    numbers = encode(message, "12345")
    assert all(type(value) is int and -(2**63) <= value < 2**63 for value in numbers.values())
    assert decode(numbers, "12345") == message


@pytest.mark.parametrize("seal", ["", "1234", "123456", "012345"])
def test_without_the_seal_there_is_no_order(seal):
    assert decode(encode(Message(1, {"n_run": 1}), "12345"), seal) is None
    assert decode({"pp_max_micro_batch_size": 3}, "12345") is None
    assert decode({}, seal) is None


def test_the_seal_is_drawn_once_and_inherited():
    environment: dict[str, str] = {}
    ensure_seal(environment)
    drawn = environment[SEAL]
    assert 0 <= int(drawn) < 2**62
    ensure_seal(environment)
    assert environment[SEAL] == drawn


def test_a_module_is_met_when_somebody_imports_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hmas_watched_a.py").write_text("value = 1\n")
    met, finders = [], list(sys.meta_path)
    when_imported("hmas_watched_a", lambda module: met.append(module.value))
    when_imported("hmas_watched_missing", met.append)
    assert met == []
    importlib.import_module("hmas_watched_a")
    assert met == [1]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hmas_watched_missing")
    assert sys.meta_path == finders
    when_imported("hmas_watched_a", lambda module: met.append(module.value + 1))
    assert met == [1, 2]
    del sys.modules["hmas_watched_a"]


def test_what_it_can_do():
    control = control_of(Scheduler())
    assert {name: (knob.low, knob.high) for name, knob in control.knobs.items()} == {"n_run": (1, 8), "token_budget": (1, 512)}
    assert (control.state()["priority"], control.absent) == (True, {})


def test_it_counts_prefills_and_who_runs_and_waits():
    scheduler = Scheduler(waiting_queue=["a", "b"], running_batch=SimpleNamespace(reqs=["c"], batch_is_full=False))
    control = control_of(scheduler)
    for batch in (SimpleNamespace(extend_num_tokens=48), None, SimpleNamespace()):
        control.after_prefill(SimpleNamespace(batch_to_run=batch))
    assert control.state()["counters"] == {"prefill_steps": 2, "prefill_tokens": 48, "running": 1, "waiting": 2}


@pytest.mark.parametrize(
    ("scheduler", "parallel", "absent"),
    [
        ({"chunked_prefill_size": None}, {}, {"token_budget": "without chunked prefill"}),
        ({"dynamic_chunk_sizer": object()}, {}, {"token_budget": "sizes its chunks itself"}),
        ({"tree_cache": SimpleNamespace(supports_mamba=lambda: True)}, {}, {"token_budget": "grid of its own"}),
        ({"tree_cache": SimpleNamespace()}, {}, {"token_budget": "grid of its own"}),
        ({"truncation_align_size": 4096}, {}, {"token_budget": "every request gets on"}),
        ({"enable_priority_scheduling": False}, {}, {"priority": "--enable-priority-scheduling"}),
        ({"max_running_requests": None}, {}, {"n_run": CAP}),
        ({}, {CAP: None}, {"n_run": CAP}),
        ({}, {"pp_size": 2}, {"n_run": "2 pipeline stages", "token_budget": "2 pipeline stages"}),
        ({}, {"num_dp_ranks": 4}, {"n_run": "4 data-parallel", "token_budget": "4 data-parallel"}),
    ],
)
def test_what_is_not_there_is_absent_with_its_reason(scheduler, parallel, absent):
    control = control_of(Scheduler(**scheduler), **parallel)
    assert control.absent.keys() == absent.keys()
    for name, words in absent.items():
        assert words in control.absent[name]
        assert name not in control.knobs
    assert control.state()["priority"] is ("priority" not in absent)


@pytest.mark.parametrize(
    ("scheduler", "least"),
    [({"page_size": 16}, 16), ({"truncation_align_size": 100, "page_size": 16}, 112), ({"is_mixed_chunk": True}, 9)],
)
def test_no_budget_can_leave_a_prompt_waiting_for_ever(scheduler, least):
    knob = control_of(Scheduler(**scheduler)).knobs["token_budget"]
    assert knob.low == least
    assert knob.fault(least) == ""
    assert knob.fault(least - 1)
    step = scheduler.get("page_size", 1)
    assert control_of(Scheduler(**scheduler)).state()["knobs"]["token_budget"] == {
        "value": 512,
        "min": least,
        "max": 512,
        "start": 512,
        "step": step,
    }
    if "page_size" in scheduler:
        assert "page size 16" in knob.fault(least + 1)


def test_an_order_is_obeyed_whole_or_not_at_all():
    scheduler = Scheduler()
    control = control_of(scheduler)
    control.obey(1, {"n_run": 3, "token_budget": 513})
    assert control.report == {"serial": 1, "applied": {}, "refused": {"knobs.token_budget": "513; allowed: 1 to 512"}}
    assert control.knobs["n_run"].read() == 8
    control.obey(2, {"n_run": 3, "token_budget": 64})
    assert control.report == {"serial": 2, "applied": {"n_run": 3, "token_budget": 64}, "refused": {}}
    assert scheduler.running_batch.batch_is_full is False


def test_a_knob_that_sglang_refuses_takes_the_others_back():
    scheduler = Scheduler()
    settings = SimpleNamespace(**{CAP: 8, "num_dp_ranks": 1, "pp_size": 1})
    control = Control(scheduler, lambda _name, _value: False, lambda: settings)
    control.obey(1, {"token_budget": 64, "n_run": 3})
    assert "SGLang refused" in known(control.report)["refused"]["knobs.n_run"]
    assert scheduler.chunked_prefill_size == 512


def test_hooks_fall_back_to_what_sglang_does(caplog):
    class Broken:
        @property
        def scheduler(self):
            raise RuntimeError("gone")

    asked = SimpleNamespace(server_args={"pp_max_micro_batch_size": 3})
    with caplog.at_level(logging.ERROR):
        assert hooks.set_internal_state(lambda _controller, received: ("stock", received), Broken(), asked) == ("stock", asked)
        assert hooks.get_internal_state(lambda *received: received, "controller", None) == ("controller", None)
        ours = SimpleNamespace(rid=READ)
        assert hooks.get_internal_state(lambda *received: received, "controller", ours) == ("controller", ours)
        scheduler = SimpleNamespace(_hmas_control=object())
        assert hooks.get_new_batch_prefill(lambda _scheduler, batch: ("plan", batch), scheduler, 5) == ("plan", 5)
    assert caplog.text.count("Traceback") == 3
