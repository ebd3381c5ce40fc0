"""The perception agent: which model it works with, what it does when one breaks, and how another takes over while it works."""

import asyncio
import json
from importlib import import_module
from pathlib import Path

import pytest
from hmas_lab.memory_bus import MemoryBus
from perception_kit import WordReader, add, ask, completion, config, done, events, notice, started
from typing_kit import all_of_type, known, of_type

from hmas.agents.model_store.card import ModelCard, write_card
from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception import agent as agent_module
from hmas.agents.perception import readers
from hmas.agents.perception.agent import REST_S, PerceptionAgent, make_agent
from hmas.agents.perception.readers import shipped_lengths
from hmas.agents.runtime.shell import AgentShell
from hmas.agents.runtime.work import Deferred
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.config.section import SloConfig
from hmas.controller.core.errors import ModelError
from hmas.controller.core.messages import EVENTS, FEATURES, MODELS, Event, Message, ModelReport, RequestFeatures
from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import TaskType
from hmas.controller.runtime.clock import SystemClock


@pytest.fixture
def store(tmp_path, monkeypatch) -> ModelStore:
    monkeypatch.setitem(readers.FORMATS, "words", WordReader)
    # The readers' own lengths are what is looked at here, not what the shipped base makes of such odd prompts.
    monkeypatch.setattr(readers, "shipped_lengths", lambda: None)
    return ModelStore(tmp_path / "state" / "models")


@pytest.mark.parametrize("base", [False, True])
async def test_it_learns_from_the_tail_of_the_telemetry_when_it_starts(tmp_path, monkeypatch, base):
    if not base:
        monkeypatch.setattr(readers, "shipped_lengths", lambda: None)
    bus = MemoryBus()
    for number in range(100):
        bus.post(completion(f"r{number}", 7, task_type=TaskType.SUMMARIZATION))
    settings = Config(
        state_dir=str(tmp_path), agents=AgentsConfig(perception_reader="rules", perception_min_confidence=0.3), slo=SloConfig(scale=3.0)
    )
    agent = await started(settings, bus)
    (features,) = done(agent.handle([completion("r0", 7), notice("new")], 100.0))
    (naive,) = ask(await started(settings), notice("new"))
    # What is replayed comes without its prompt. It moves the prior; a base does not know what it would have expected, so it learns bounds.
    assert 20 * 7 < features.output_tokens < naive.output_tokens if base else features.output_tokens < 0.1 * naive.output_tokens
    assert (features.ttft_slo_ms, features.tpot_slo_ms) == (2000.0, slo_for(TaskType.SUMMARIZATION, 0.75, 3.0).tpot_ms), "as the gateway"
    assert agent.handle([completion("r0", 7)], 100.0) == []
    assert agent.model.tally.learnt == 100


async def test_by_the_rules_nothing_is_loaded_and_nothing_is_told(tmp_path):
    agent = await started(config(tmp_path, perception_reader="rules"))
    (features,) = ask(agent, notice())
    assert (features.task_type, features.source) == (TaskType.SUMMARIZATION, "rules")
    assert events(agent.on_tick(101.0)) == []


async def test_a_model_that_is_missing_at_the_start_leaves_the_rules_and_says_so(tmp_path, store):
    agent = await started(config(tmp_path, perception_reader="v3"))
    (features,) = ask(agent, notice())
    assert (features.task_type, features.source) == (TaskType.SUMMARIZATION, "rules")
    agent = await started(config(tmp_path, perception_reader="v3"))
    told = agent.on_tick(101.0)
    assert events(told) == [("model_fallback", "v3", "rules")]
    (event,) = [message for message in told if isinstance(message, Event)]
    assert "'v3' is not in" in event.reason
    (report,) = [message for message in told if isinstance(message, ModelReport)]
    assert (report.model, report.fallback) == ("rules", event.reason)


async def test_the_stores_choice_is_followed_while_it_works_and_back(tmp_path, store):
    add(store, tmp_path, TaskType.QA)
    add(store, tmp_path, TaskType.LETTER_DRAFTING)
    store.use("perception", "v1")
    agent = await started(config(tmp_path))
    assert [ask(agent, notice())[0].task_type] == [TaskType.QA]
    assert agent.beside(101.0) is None
    store.use("perception", "v2")
    assert agent.beside(101.5) is None, "the disk is looked at every few seconds only"
    assert events(done(agent.beside(104.0))) == [("model_changed", "v1", "v2")]
    (features,) = ask(agent, notice())
    assert (features.task_type, features.source) == (TaskType.LETTER_DRAFTING, "word council")
    store.rollback("perception")
    assert events(done(agent.beside(107.0))) == [("model_changed", "v2", "v1")]
    assert ask(agent, notice())[0].task_type is TaskType.QA


async def test_a_broken_choice_leaves_the_old_one_in_force_and_is_told_once(tmp_path, store):
    for _ in range(2):
        add(store, tmp_path)
    store.use("perception", "v1")
    agent = await started(config(tmp_path))
    store.use("perception", "v2")
    (store.folder("perception", "v2") / "word.json").write_text("{}")
    told = done(agent.beside(104.0))
    assert events(told) == [("model_refused", "v2", "v1")]
    assert "the file was changed" in of_type(Event, told[0]).reason
    assert told[0].severity == "error"
    assert agent.beside(107.0) is None
    assert ask(agent, notice())[0].task_type is TaskType.QA
    (report,) = [message for message in agent.on_tick(108.0) if isinstance(message, ModelReport)]
    assert (report.model, report.fallback) == ("v1", told[0].reason)
    store.rollback("perception")
    assert done(agent.beside(110.0)) == []
    (report,) = [message for message in agent.on_tick(120.0) if isinstance(message, ModelReport)]
    assert (report.model, report.fallback) == ("v1", "")


async def test_another_reader_on_the_same_base_keeps_the_learnt_lengths(tmp_path, store, monkeypatch):
    monkeypatch.setattr(readers, "shipped_lengths", shipped_lengths)
    for _ in range(2):
        add(store, tmp_path)
    store.use("perception", "v1")
    agent = await started(config(tmp_path))
    for number in range(50):
        ask(agent, notice(f"r{number}", excerpt=f"the council of {number}"))
        done(agent.handle([completion(f"r{number}", 7)], 100.0))
    learnt = agent.model.lengths
    known(learnt.ranges).out_of_range["log_chars"] = 30
    store.use("perception", "v2")
    assert events(done(agent.beside(104.0))) == [("model_changed", "v1", "v2")]
    assert (agent.model.lengths, known(learnt.ranges).out_of_range) == (learnt, {}), "figures count anew"
    assert ask(agent, notice("new", excerpt="the council of all"))[0].output_tokens == pytest.approx(7, rel=0.4)
    store.set_shadow("perception", "v1")
    done(agent.beside(107.0))
    store.use("perception", "v1")
    done(agent.beside(110.0))
    assert (in_the_shadow := agent.model.lengths) is not learnt
    store.rollback("perception")
    assert events(done(agent.beside(113.0))) == [("model_changed", "v1", "v2")]
    assert agent.model.lengths is in_the_shadow


async def test_a_server_that_is_opened_again_as_the_choice_is_written_is_no_other_model(tmp_path, store, monkeypatch):
    monkeypatch.setattr(readers, "shipped_lengths", shipped_lengths)
    agent = await started(config(tmp_path, perception_reader="http://127.0.0.1:9", perception_endpoint_model="m"))
    model, reader, tally = agent.model, agent.model.reader, agent.model.tally
    add(store, tmp_path)
    assert done(agent.beside(104.0)) == []
    assert agent.model.reader is not reader
    assert (agent.model, agent.model.tally) == (model, tally)


async def test_a_reader_of_a_format_nobody_knows_or_whose_package_is_missing_is_refused_with_the_reason(tmp_path, store, monkeypatch):
    folder = tmp_path / "trained"
    folder.mkdir()
    (folder / "weights").write_text("x")
    for form in ("abacus", "gone"):
        store.add("perception", folder, ModelCard(kind="perception", format=form))
    monkeypatch.setitem(readers.FORMATS, "gone", lambda _folder: import_module("package_that_is_not_there"))
    for version, said in (
        ("v1", "card.format is 'abacus'; allowed: one of onnx, transformers, words, gone, lengths"),
        ("v2", "pip install h-mas[train]"),
    ):
        agent = await started(config(tmp_path, perception_reader=version))
        (event,) = [message for message in agent.on_tick(101.0) if isinstance(message, Event)]
        assert said in event.reason


async def test_a_reader_that_fails_while_it_works_is_stood_in_for_left_alone_and_asked_again(tmp_path, store):
    add(store, tmp_path)
    store.use("perception", "v1")
    agent = await started(config(tmp_path))
    broken = store.folder("perception", "v1") / "broken.txt"
    broken.write_text("")
    told = done(agent.handle([notice()], 100.0))
    assert events(told) == [("model_fallback", "v1", "rules")]
    assert told[0].source == "rules"
    assert told[0].task_type is TaskType.SUMMARIZATION
    broken.unlink()
    assert ask(agent, notice(), now_s=104.0)[0].source == "rules", "it is left alone for a while"
    told = done(agent.handle([notice()], 106.0), 106.0)
    assert events(told) == [("model_restored", "rules", "v1")]
    assert told[0].source == "word council"


class Timed:
    """Reads as its model does, and says how long that took."""

    def __init__(self, reader, clock: list[float], each_s: float) -> None:
        self.name, self._reader, self._clock, self._each_s = reader.name, reader, clock, each_s

    def read(self, prompts):
        self._clock[0] += self._each_s * sum(bool(prompt.excerpt) for prompt in prompts)
        return self._reader.read(prompts)


@pytest.mark.parametrize(("each_s", "most"), [(0.00049, 6), (0.002, 1), (0.05, 0)])
async def test_what_is_read_in_a_moment_is_read_on_the_loop(tmp_path, monkeypatch, each_s, most):
    clock = [0.0]
    monkeypatch.setattr("hmas.agents.perception.agent.time.perf_counter", lambda: clock[0])
    agent = await started(config(tmp_path, perception_reader="rules"))
    agent.model.reader = Timed(agent.model.reader, clock, each_s)
    first = agent.handle([notice("first")], 100.0)
    assert isinstance(first, Deferred), "nobody knows yet how long this reader takes"
    done(first)
    for count in (1, 2, 6, 7, 100):
        said = agent.handle([notice(f"{count}-{number}") for number in range(count)], 100.0)
        assert isinstance(said, Deferred) == (count > most)
        assert len(done(said)) == count


async def test_what_has_no_text_or_was_read_by_the_rules_makes_a_slow_reader_no_faster(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("hmas.agents.perception.agent.time.perf_counter", lambda: clock[0])
    agent = await started(config(tmp_path, perception_reader="rules"))
    slow = agent.model.reader = Timed(agent.model.reader, clock, 0.05)
    slow.name = "slow"
    for first in (notice("first"), notice("blank", excerpt="")):
        done(agent.handle([first], 100.0))
    assert isinstance(agent.handle([notice("second")], 100.0), Deferred)
    with monkeypatch.context() as broken:
        broken.setattr(slow, "read", None)
        assert "model_fallback" in [kind for kind, _, _ in events(done(agent.handle([notice("third")], 100.0)))]
    assert ask(agent, notice("fourth"), now_s=101.0)[0].source == "rules"
    assert isinstance(agent.handle([notice("fifth")], 110.0), Deferred)


async def test_a_reader_behind_a_server_is_awaited(tmp_path, store):
    class Away(WordReader):
        async def read_async(self, prompts):
            await asyncio.sleep(0)
            return self.read(prompts)

    add(store, tmp_path)
    store.use("perception", "v1")
    agent = await started(config(tmp_path))
    agent.model.reader = Away(store.folder("perception", "v1"))
    work = of_type(Deferred, agent.handle([notice()], 100.0))
    (features,) = all_of_type(RequestFeatures, work.finish(await work.compute(), 100.0))
    assert features.task_type is TaskType.QA


async def test_a_reader_whose_server_is_gone_is_stood_in_for_by_the_rules(tmp_path):
    agent = await started(config(tmp_path, perception_reader="http://127.0.0.1:9", perception_endpoint_model="m"))

    async def answers(now_s: float, **fields: str) -> list[Message]:
        work = of_type(Deferred, agent.handle([notice(**fields)], now_s))
        return work.finish(await work.compute(), now_s)

    told = await answers(100.0)
    assert [(one.task_type, one.source) for one in told if isinstance(one, RequestFeatures)] == [(TaskType.SUMMARIZATION, "rules")]
    assert events(told) == [("model_fallback", "endpoint:m", "rules")]
    assert ask(agent, notice(), now_s=100.0 + REST_S - 0.1)[0].source == "rules", "the server is left alone"
    assert events(await answers(101.0 + REST_S, excerpt="")) == [], "nothing was asked, so nothing was answered"
    assert events(await answers(102.0 + REST_S)) == [], "told already"


SHORT, MIDDLE, LONG = ([centre + step for step in (-0.9, -0.5, 0.0, 0.5, 0.9, 1.2, 1.6)] for centre in (2.5, 4.0, 5.5))
BLIND = {"council": MIDDLE}
"""Lengths by a model that takes all answers for alike."""
SEEING = {"brief": SHORT, "full": LONG}
"""Lengths by one that sees in the prompt what the other does not."""


async def in_the_shadow(tmp_path: Path, store: ModelStore, lengths, shadow_lengths, **agents) -> PerceptionAgent:
    add(store, tmp_path, lengths=lengths)
    add(store, tmp_path, lengths=shadow_lengths)
    store.use("perception", "v1")
    store.set_shadow("perception", "v2")
    agent = await started(config(tmp_path, model_shadow_completions=100, **agents))
    assert events(agent.on_tick(150.0)) == [("model_shadow", "", "v2")]
    return agent


def traffic(agent: PerceptionAgent, count: int, at_s: float = 200.0) -> None:
    """Requests read along in the shadow, and completed: half are answered in some 12 tokens, half in 250."""
    for number in range(count):
        name, wish = f"{at_s}-{number}", ("brief", "full")[number * 7 % 13 % 2]
        done(agent.handle([notice(name, excerpt=f"{name} council {wish}")], at_s), at_s)
        while (work := agent.beside(at_s)) is not None:
            done(work, at_s)
        tokens = (12 if wish == "brief" else 250) + number % 7
        done(agent.handle([completion(name, tokens)], at_s), at_s)


async def test_a_better_model_in_the_shadow_is_told_and_stays_there(tmp_path, store):
    agent = await in_the_shadow(tmp_path, store, BLIND, SEEING)
    traffic(agent, 150)
    assert known(agent.shadow).verdict().pairs == 50
    assert events(agent.on_tick(300.0)) == [], "it is too early to tell"
    traffic(agent, 150, 301.0)
    told = agent.on_tick(400.0)
    assert events(told) == [("model_better", "v1", "v2")]
    assert "hmas models use perception v2" in of_type(Event, told[0]).reason
    active, shadow = [message for message in told if isinstance(message, ModelReport)]
    assert events(agent.on_tick(500.0)) == []
    assert (active.model, active.role, shadow.model, shadow.role) == ("v1", "active", "v2", "shadow")
    assert shadow.figures["pinball"] < active.figures["pinball"]
    assert shadow.figures["gain"] > 0.02
    assert shadow.figures["evidence"] > 4.6
    assert shadow.figures["agreement"] == 1.0
    assert (shadow.figures["pairs"], shadow.figures["dropped"]) == (200.0, 0.0)
    assert store.choice("perception").current == "v1"


async def test_a_better_model_takes_over_by_itself_where_that_is_configured_with_what_it_has_learnt(tmp_path, store):
    agent = await in_the_shadow(tmp_path, store, BLIND, SEEING, model_promotion="auto")
    traffic(agent, 300)
    shadow = known(agent.shadow).model
    assert events(agent.on_tick(300.0)) == [("model_promoted", "v1", "v2")]
    assert done(agent.beside(301.0)) == []
    assert store.choice("perception").current == "v2"
    assert events(done(agent.beside(304.0))) == [("model_changed", "v1", "v2"), ("model_shadow", "v2", "")]
    assert agent.model is shadow
    assert store.rollback("perception") == "v1"


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("other", ["v3", ""])
async def test_a_shadow_that_is_set_before_the_better_one_is_promoted_is_not_promoted_for_it(tmp_path, store, looked, other):
    agent = await in_the_shadow(tmp_path, store, BLIND, SEEING, model_promotion="auto")
    add(store, tmp_path, lengths=BLIND)
    traffic(agent, 300)
    if looked:
        assert agent.beside(299.0) is None
    assert events(agent.on_tick(300.0)) == [("model_promoted", "v1", "v2")]
    # The better one begins again where it is set again.
    for start_s, version in ((300.5, other), (307.0, "v2")):
        store.set_shadow("perception", version)
        for at_s in (start_s, start_s + 3.5, start_s + 4.0):
            done(agent.beside(at_s))
        assert ("" if agent.shadow is None else agent.shadow.name) == version
        assert (store.choice("perception").current, store.choice("perception").shadow) == ("v1", version)


async def test_a_better_model_does_not_push_out_one_that_the_configuration_pins(tmp_path, store):
    agent = await in_the_shadow(tmp_path, store, BLIND, SEEING, model_promotion="auto", perception_reader="v1")
    traffic(agent, 300)
    assert [kind for kind, _, _ in events(agent.on_tick(300.0))] == ["model_better"]
    assert store.choice("perception").current == "v1"


@pytest.mark.parametrize(("lengths", "shadow_lengths"), [(SEEING, SEEING), (SEEING, BLIND)])
async def test_a_model_that_is_no_better_is_never_called_so(tmp_path, store, lengths, shadow_lengths):
    agent = await in_the_shadow(tmp_path, store, lengths, shadow_lengths, model_promotion="auto")
    traffic(agent, 1000)
    assert not known(agent.shadow).verdict().better
    assert events(agent.on_tick(300.0)) == []


async def test_the_shadow_is_left_behind_rather_than_waited_for(tmp_path, store, monkeypatch):
    agent = await in_the_shadow(tmp_path, store, BLIND, SEEING)
    for number in range(20):
        ask(agent, notice(f"r{number}"))
    assert known(agent.shadow).figures()["dropped"] == 12.0
    work = known(agent.beside(200.0))
    monkeypatch.setattr(known(agent.shadow).model, "reader", None)
    with pytest.raises(AttributeError):
        work.compute()
    assert len(ask(agent, notice("x"))) == 1


async def test_reports_come_every_few_seconds_signed_by_the_instance(tmp_path, monkeypatch):
    monkeypatch.setattr(PerceptionAgent, "tick_s", 0.01)
    monkeypatch.setattr(agent_module, "REPORT_EVERY_S", 0.05)
    bus, stop = MemoryBus(), asyncio.Event()
    shell = AgentShell(agent=make_agent(config(tmp_path, perception_reader="rules")), bus=bus, clock=SystemClock(), instance="b")
    task = asyncio.create_task(shell.run(stop))
    clock = SystemClock()
    for number in range(20):
        bus.post(notice(f"r{number}", sent_s=clock.now_s()))
    async with asyncio.timeout(10):
        while len(await bus.latest(FEATURES, 100)) < 20:  # noqa: ASYNC110 - the bus is polled: followers are not what is tested
            await asyncio.sleep(0.005)
        for number in range(20):
            bus.post(completion(f"r{number}", 50))
        while not (reports := [one for one in await bus.latest(MODELS, 1000) if of_type(ModelReport, one).scored == 20]):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
    stop.set()
    await task
    report = of_type(ModelReport, reports[0])
    assert (report.agent, report.instance, report.model, report.role, report.requests) == ("perception", "b", "rules", "active", 20)
    assert 1.0 <= report.figures["batch_size"] <= 20.0
    assert report.figures["inference_ms"] > 0.0
    assert report.figures["unknown_share"] == 0.0
    assert len(report.coverage) == 7
    assert report.rss_bytes > 10 << 20
    assert [event.kind for event in all_of_type(Event, await bus.latest(EVENTS, 10))] == ["agent_started", "agent_stopped"]


async def test_a_card_of_lengths_alone_keeps_the_shipped_tagger(tmp_path, store, monkeypatch):
    tagger = tmp_path / "tagger"
    tagger.mkdir()
    (tagger / "word.json").write_text(json.dumps({"word": "council", "task": TaskType.QA.value}))
    write_card(tagger, ModelCard(kind="perception", format="words"))
    monkeypatch.setattr(readers, "SHIPPED_TAGGER", tagger)
    folder = tmp_path / "lengths"
    folder.mkdir()
    (folder / "lengths.json").write_text("not a net")
    store.add("perception", folder, ModelCard(kind="perception", format="lengths"))
    with pytest.raises(ModelError, match=r"lengths\.json"):
        readers.ReaderSource(AgentsConfig(perception_reader="v1"), store).open()
