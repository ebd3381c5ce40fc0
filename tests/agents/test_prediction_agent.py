"""The agent on the bus: answers, falls back, starts from profiles, trains on, and follows the store's choice."""

import asyncio
import threading
import time

import msgspec
import numpy as np
import pytest
from hmas_lab.memory_bus import MemoryBus
from message_kit import completed, instance_view, request_features, system_snapshot
from shell_kit import shells
from typing_kit import all_of_type, known

from hmas.agents.model_store.comparison import Verdict
from hmas.agents.model_store.store import ModelStore
from hmas.agents.prediction import agent as agent_module
from hmas.agents.prediction import refitting
from hmas.agents.prediction.agent import REPORT_EVERY_S, make_agent
from hmas.agents.prediction.regressor import KIND, SHIPPED, load_regressor
from hmas.agents.runtime.work import BRIEF_MS, Deferred, Pace
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.errors import ModelError
from hmas.controller.core.messages import Completion, Event, ModelReport, RequestCost, RequestFeatures, SystemSnapshot
from hmas.controller.core.types import OutcomeKind
from hmas.controller.runtime.clock import SystemClock


def features(request_id: str, prompt_tokens: int = 100) -> RequestFeatures:
    return request_features(request_id, prompt_tokens=prompt_tokens, output_tokens_p90=200.0)


def snapshot(at_s: float) -> SystemSnapshot:
    return system_snapshot(instance_view(), sent_s=at_s)


def answers(agent, messages, now_s: float) -> list:
    """What the agent posts for a batch, wherever it has its trees gone through."""
    said = agent.handle(messages, now_s)
    return said.finish(said.compute(), now_s) if isinstance(said, Deferred) else said


def agent_in(tmp_path, **changes):
    return make_agent(Config(state_dir=str(tmp_path), agents=AgentsConfig(**changes)))


def events(messages, kind=None):
    return [one for one in messages if isinstance(one, Event) and kind in (None, one.kind)]


def test_without_its_model_the_agent_works_and_says_so_once(tmp_path):
    agent = agent_in(tmp_path, prediction_model=str(tmp_path / "gone"))
    (cost,) = answers(agent, [snapshot(100.0), features("r")], 100.0)
    assert isinstance(cost, RequestCost)
    said = agent.on_tick(101.0)
    (event,) = events(said)
    assert (event.kind, event.severity, event.sent_s) == ("model_fallback", "warning", 101.0)
    assert "gone" in event.reason
    (report,) = [one for one in said if isinstance(one, ModelReport)]
    assert "gone" in report.fallback
    assert agent.on_tick(102.0) == []


def test_with_its_model_the_agent_answers_every_request_of_a_batch(tmp_path):
    agent = agent_in(tmp_path)
    costs = answers(agent, [features("x"), snapshot(100.0), features("y")], 100.0)
    assert [cost.request_id for cost in costs] == ["x", "y"]
    (report,) = agent.on_tick(101.0)
    assert isinstance(report, ModelReport)
    assert (report.model, report.requests, report.fallback) == ("shipped", 2, "")
    assert report.figures["batch_size"] == 2.0


def test_an_engine_whose_profile_is_named_starts_from_it_and_a_wrong_name_is_told(tmp_path):
    agent = agent_in(tmp_path)
    named = {"a": "h100-llama-3-8b", "b": "4xT4/llama-13b", "c": "warp-drive", "d": "warp-drive"}
    view = snapshot(100.0).instances[0]
    views = [msgspec.structs.replace(view, name=name, profile=profile) for name, profile in named.items()]
    (cost,) = answers(agent, [msgspec.structs.replace(snapshot(100.0), instances=views[1:]), features("r")], 100.0)
    (event,) = events(agent.on_tick(100.0))
    assert event.kind == "profile_refused"
    assert "warp-drive" in event.reason
    (later,) = answers(agent, [msgspec.structs.replace(snapshot(101.0), instances=views), features("s")], 101.0)
    assert later.tpot_ms["a"] < 15.0 < cost.tpot_ms["b"], "an engine that joins starts from its profile, too"
    assert events(agent.on_tick(102.0)) == []


def done(work: Deferred | None, now_s: float) -> list:
    return [] if work is None else work.finish(work.compute(), now_s)


async def follow(agent, now_s: float) -> list:
    """Does what the shell does beside: the piece of work that the agent asks for, and what it says afterwards."""
    work = agent.beside(now_s)
    return [] if work is None else [*done(work, now_s), *agent.on_tick(now_s + REPORT_EVERY_S)]


def live(agent, count: int, *, slow: float, start: int = 0) -> None:
    """An engine that takes `slow` times what the formula says of prompts over 500 tokens."""
    rng = np.random.default_rng(start)
    for number in range(start, start + count):
        at_s = 100.0 + 0.2 * number
        agent.handle([snapshot(at_s)], at_s)
        prompt = int(rng.integers(50, 1500))
        answers(agent, [features(f"r{number}", prompt)], at_s)
        ttft_ms = (40.0 + 0.2 * prompt) * (slow if prompt > 500 else 1.0) * float(rng.lognormal(0, 0.05))
        agent.handle(
            [
                completed(
                    f"r{number}",
                    sent_s=at_s + 1.0,
                    arrival_s=at_s,
                    instance="a",
                    prompt_tokens=prompt,
                    output_tokens=50,
                    ttft_ms=ttft_ms,
                    service_ttft_ms=ttft_ms,
                    tpot_ms=26.0 * float(rng.lognormal(0, 0.05)),
                    total_ms=ttft_ms + 1300.0,
                    running=2,
                )
            ],
            at_s + 1.0,
        )


@pytest.mark.slow
async def test_a_refit_reads_along_and_takes_over_when_live_traffic_finds_it_better(tmp_path):
    agent = agent_in(
        tmp_path, prediction_refit_completions=600, model_promotion="auto", model_shadow_completions=200, model_shadow_margin=0.02
    )
    live(agent, 700, slow=3.0)
    (refitted,) = events(await follow(agent, 300.0), "model_refitted")
    assert refitted.after == "v1"
    store = ModelStore(tmp_path / "models")
    assert store.choice(KIND).shadow == "v1"
    assert events(await follow(agent, 310.0), "model_shadow")
    live(agent, 900, slow=3.0, start=700)
    promoted = events(agent.on_tick(500.0), "model_promoted")
    for number in range(3):
        live(agent, 300, slow=3.0, start=1600 + 300 * number)
        promoted += events(agent.on_tick(600.0 + 20 * number), "model_promoted")
    assert [event.after for event in promoted] == ["v1"]
    await follow(agent, 700.0)
    assert store.choice(KIND).current == "v1"
    assert [event.after for event in events(await follow(agent, 710.0), "model_changed")] == ["v1"]
    store.rollback(KIND)
    assert [event.after for event in events(await follow(agent, 730.0), "model_changed")] == ["shipped"]


def test_figures_of_another_model_are_its_own_from_the_first_request_on(tmp_path):
    agent = agent_in(tmp_path)
    store = ModelStore(tmp_path / "models")
    store.use(KIND, store.add(KIND, SHIPPED, load_regressor().card))
    for at_s in (100.0, 101.0, 102.0):
        answers(agent, [snapshot(at_s), features("a"), features("b")], at_s)
    done(agent.beside(103.0), 103.0)
    answers(agent, [features(name) for name in "cdefg"], 104.0)
    (report,) = [one for one in agent.on_tick(105.0) if isinstance(one, ModelReport)]
    assert (report.model, report.requests, report.figures["batch_size"]) == ("v1", 5, 5.0)


@pytest.mark.parametrize("other", ["v2", ""])
@pytest.mark.parametrize("better", [True, False])
def test_a_verdict_on_a_shadow_does_not_touch_one_that_was_set_meanwhile(tmp_path, monkeypatch, better, other):
    store = ModelStore(tmp_path / "models")
    for _ in range(2):
        store.add(KIND, SHIPPED, load_regressor().card)
    store.set_shadow(KIND, "v1")
    agent = agent_in(tmp_path, model_promotion="auto")
    monkeypatch.setattr(known(agent.shadow), "judge", lambda *_: Verdict(better=better, pairs=1_000_000, gain=0.1, evidence=30.0))
    agent.on_tick(100.0)
    store.set_shadow(KIND, other)
    done(agent.beside(100.5), 100.5)
    assert (store.choice(KIND).current, store.choice(KIND).shadow) == ("", other)


@pytest.mark.parametrize("better", [True, False])
def test_a_verdict_on_a_shadow_does_not_touch_a_choice_that_was_made_meanwhile(tmp_path, monkeypatch, better):
    store = ModelStore(tmp_path / "models")
    for _ in range(2):
        store.add(KIND, SHIPPED, load_regressor().card)
    store.set_shadow(KIND, "v1")
    agent = agent_in(tmp_path, model_promotion="auto")
    assert agent.beside(99.5) is None
    monkeypatch.setattr(known(agent.shadow), "judge", lambda *_: Verdict(better=better, pairs=1_000_000, gain=0.1, evidence=30.0))
    agent.on_tick(100.0)
    store.use(KIND, "v2")
    done(agent.beside(100.5), 100.5)
    assert (store.choice(KIND).current, store.choice(KIND).shadow) == ("v2", "v1")


BETTER = Verdict(better=True, pairs=1_000_000, gain=0.1, evidence=30.0)


def test_a_shadow_is_compared_anew_with_another_model_in_force(tmp_path, monkeypatch):
    store = ModelStore(tmp_path / "models")
    for _ in range(2):
        store.add(KIND, SHIPPED, load_regressor().card)
    store.set_shadow(KIND, "v2")
    agent = agent_in(tmp_path, model_promotion="auto")
    shadow = known(agent.shadow)
    monkeypatch.setattr(shadow, "judge", lambda *_: BETTER)
    assert events(agent.on_tick(100.0), "model_promoted")
    live(agent, 3, slow=1.0)
    store.use(KIND, "v1")
    done(agent.beside(103.0), 103.0)
    assert agent.shadow is not shadow
    assert known(agent.shadow).version == "v2"
    assert not agent.model.unscored
    assert agent.beside(104.0) is None, "it was better than the model that has gone"
    assert (store.choice(KIND).current, store.choice(KIND).shadow) == ("v1", "v2")


def test_a_version_that_was_rolled_back_is_told_again_from_the_shadow(tmp_path, monkeypatch):
    monkeypatch.setattr(refitting.Shadow, "judge", lambda *_: BETTER)
    store = ModelStore(tmp_path / "models")
    store.set_shadow(KIND, store.add(KIND, SHIPPED, load_regressor().card))
    agent = agent_in(tmp_path, model_promotion="auto")
    for start_s in (100.0, 200.0):
        assert [event.after for event in events(agent.on_tick(start_s), "model_promoted")] == ["v1"]
        done(agent.beside(start_s + 1.0), start_s + 1.0)
        assert store.choice(KIND).current == "v1"
        done(agent.beside(start_s + 4.0), start_s + 4.0)
        store.rollback(KIND)
        store.set_shadow(KIND, "v1")
        done(agent.beside(start_s + 7.0), start_s + 7.0)


def test_a_promotion_that_the_store_could_not_write_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(refitting.Shadow, "judge", lambda *_: BETTER)
    store = ModelStore(tmp_path / "models")
    store.set_shadow(KIND, store.add(KIND, SHIPPED, load_regressor().card))
    agent = agent_in(tmp_path, model_promotion="auto")
    assert events(agent.on_tick(100.0), "model_promoted")
    with monkeypatch.context() as full:
        full.setattr(ModelStore, "_write", refused)
        with pytest.raises(ModelError, match="no space"):
            done(agent.beside(101.0), 101.0)
    assert agent.beside(102.0) is None, "not at once"
    assert events(agent.on_tick(111.0), "model_promoted") == []
    done(agent.beside(112.0), 112.0)
    assert store.choice(KIND).current == "v1"


def refused(*_args):
    raise ModelError("choice.json cannot be written: no space left on device")


@pytest.mark.parametrize(
    ("method", "left", "said"),
    [(None, ("", "v2"), "reads along"), ("set_shadow", ("", "v1"), "stays in the store"), ("use", ("v1", ""), "stays in the store")],
)
def test_a_refit_leaves_what_was_chosen_while_it_trained(tmp_path, monkeypatch, method, left, said):
    store = ModelStore(tmp_path / "models")
    store.add(KIND, SHIPPED, load_regressor().card)

    def refit(*_args):
        if method is not None:
            getattr(store, method)(KIND, "v1")
        return load_regressor(), {"old": 1.0, "new": 0.5}

    monkeypatch.setattr(refitting, "refit", refit)
    monkeypatch.setattr(agent_module, "due", lambda *_: True)
    agent = agent_in(tmp_path)
    live(agent, 3, slow=1.0)
    done(agent.beside(200.0), 200.0)
    (event,) = events(agent.on_tick(201.0), "model_refitted")
    assert event.after == "v2"
    assert said in event.reason
    assert (store.choice(KIND).current, store.choice(KIND).shadow) == left


def test_a_broken_choice_leaves_the_model_in_force_and_is_told(tmp_path):
    store = ModelStore(tmp_path / "models")
    version = store.add(KIND, SHIPPED, load_regressor().card)
    agent = agent_in(tmp_path)
    store.use(KIND, version)
    (store.folder(KIND, version) / "ttft-50.cbm").write_bytes(b"cut off")
    work = agent.beside(100.0)
    assert work is not None
    work.finish(work.compute(), 100.0)
    (event,) = events(agent.on_tick(101.0), "model_refused")
    assert "ttft-50.cbm" in event.reason
    assert answers(agent, [snapshot(102.0), features("r")], 102.0)


async def test_the_agent_learns_an_engines_speed_from_the_stream_when_it_starts(tmp_path):
    bus = MemoryBus()
    bus.post(snapshot(99.0))
    for number in range(100):
        bus.post(
            Completion(
                request_id=str(number),
                sent_s=99.5,
                tenant="t",
                model="m",
                outcome=OutcomeKind.COMPLETED,
                arrival_s=99.0,
                policy="edf",
                instance="a",
                prompt_tokens=100,
                output_tokens=50,
                ttft_ms=10.0,
                service_ttft_ms=10.0,
                tpot_ms=2.0,
                total_ms=108.0,
                running=2,
            )
        )
    agent, fresh = agent_in(tmp_path), agent_in(tmp_path)
    await agent.recover(bus, 100.0)
    (learnt,), (default,) = (answers(one, [snapshot(100.0), features("r")], 100.0) for one in (agent, fresh))
    assert learnt.tpot_ms["a"] < 5.0 < default.tpot_ms["a"]


class Slow:
    """A regressor that takes its time, and says in which thread."""

    def __init__(self, log_ratio: float, gate: threading.Event | None = None) -> None:
        self.log_ratio = log_ratio
        self.gate = gate
        self.threads: set[str] = set()
        self.accepted: dict[str, float] = {}
        self.ranges = None

    def log_ratios(self, rows, names):
        self.threads.add(threading.current_thread().name)
        if self.gate is not None:
            assert self.gate.wait(10.0)
        return np.full((len(rows), 2), self.log_ratio)


async def test_ticks_go_on_while_trees_are_gone_through_and_every_request_is_answered(tmp_path):
    gate, now_s = threading.Event(), time.time()
    agent = agent_in(tmp_path)
    agent.tick_s = 0.005
    agent.model.adopt(slow := Slow(0.0, gate))
    async with shells(SystemClock) as start:
        running = start(agent)
        running.bus.post(snapshot(now_s))
        for number in range(3):
            running.bus.post(msgspec.structs.replace(features(f"r{number}"), sent_s=now_s))
        before = running.shell.counts.ticks
        while not slow.threads or running.shell.counts.ticks < before + 5:  # noqa: ASYNC110 - the loop is what is tested
            await asyncio.sleep(0)
        assert await running.bus.latest("hmas:costs", 10) == []
        gate.set()
        assert {cost.request_id for cost in await running.answers(3)} == {"r0", "r1", "r2"}
    assert {name.rsplit("_", 1)[0] for name in slow.threads} == {"prediction-work"}


def test_a_few_rows_stay_on_the_loop_once_it_is_known_that_they_take_but_a_moment(tmp_path):
    agent = agent_in(tmp_path)
    assert isinstance(agent.handle([snapshot(100.0), features("first")], 100.0), Deferred), "nobody knows yet how long it takes"
    for number in range(40):
        answers(agent, [features(f"r{number}")], 100.0)
    assert isinstance(agent.handle([features("last")], 100.0), list)
    crowd = [features(f"c{number}") for number in range(100)]
    agent.pace = Pace()
    agent.pace.took(len(crowd), 2.0 * BRIEF_MS)
    assert isinstance(agent.handle(crowd, 100.0), Deferred)


def test_what_comes_between_the_halves_neither_mixes_models_nor_is_lost(tmp_path):
    agent = agent_in(tmp_path)
    agent.model.adopt(Slow(0.0))
    work = agent.handle([snapshot(100.0), features("r")], 100.0)
    assert isinstance(work, Deferred)
    said = work.compute()
    agent.model.adopt(Slow(0.5))
    (cost, again) = all_of_type(RequestCost, [*work.finish(said, 100.0), *answers(agent, [features("s")], 100.0)])
    assert cost.ttft_ms == again.ttft_ms, "the model in force answers, not the one that has gone"
    done = completed(
        "r",
        sent_s=101.0,
        arrival_s=100.0,
        instance="a",
        prompt_tokens=100,
        output_tokens=50,
        ttft_ms=50.0,
        service_ttft_ms=50.0,
        tpot_ms=20.0,
    )
    agent.handle([done], 101.0)
    assert agent.model.scored == 1
