"""What a thousand good requests cost on each engine, of which a price is told."""

from pathlib import Path

import pytest
from gateway_kit import chat, running, start_sim
from hmas_lab.memory_bus import MemoryBus
from message_kit import completed
from test_admin_api import call

from hmas.cli.engines import engine_table
from hmas.controller.config.loader import ConfigMistakes, load_config
from hmas.controller.config.schema import EngineConfig
from hmas.controller.core.types import TaskType
from hmas.controller.observability import completions
from hmas.controller.observability.completions import RECENT_KEPT, CompletionRecorder


async def test_engines_list_tells_the_cost_of_good_requests(tmp_path: Path):
    sims = [await start_sim("paid"), await start_sim("free")]
    engines = [EngineConfig(name=sim.name, url=sim.url, cost_per_hour=3.6 if sim.name == "paid" else 0.0) for sim in sims]
    async with running(tmp_path, sims=sims, engines_config=engines) as rig:
        before = engine_table(await call(rig.operator.engines))
        for number in range(6):
            assert (await rig.post(chat(f"request {number}", tokens=2))).status == 200
        listed = {one["name"]: one for one in await call(rig.operator.engines)}
    assert "none served" in before
    assert 0.1 < sum(one["good_rps"] for one in listed.values()) <= 6.0, "over the time since the start"
    # 3.6 an hour are a thousandth a second.
    assert listed["paid"]["cost_per_1000_good"] == pytest.approx(1.0 / listed["paid"]["good_rps"])
    assert listed["free"]["cost_per_hour"] == 0.0
    rows = engine_table(list(listed.values())).splitlines()
    assert "cost of 1,000 good" in rows[0]
    assert "cost of 1,000 good" not in engine_table([listed["free"]])


class Stopped:
    """A clock that a test sets."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


def test_good_requests_per_second_are_those_of_the_last_minute_and_sort_nothing(monkeypatch: pytest.MonkeyPatch):
    def unwanted(_: object) -> None:
        raise AssertionError("good requests per second need no order of latencies")

    monkeypatch.setattr(completions, "sorted", unwanted, raising=False)
    clock = Stopped()
    clock.time_s = 0.0
    bus = MemoryBus()
    bus.silent = True
    recorder = CompletionRecorder(bus, clock, str)
    clock.time_s = 100.0

    def end(sent_s: float, instance: str, *, slo_met: bool = True) -> None:
        recorder.ended(completed(sent_s=sent_s, instance=instance, slo_met=slo_met, ttft_ms=1.0))

    assert recorder.good_rps() == {}
    end(39.0, "old")
    for _ in range(6):
        end(99.0, "a")
    end(99.0, "b")
    end(99.0, "b", slo_met=False)
    assert recorder.good_rps() == {"a": 0.1, "b": 1 / 60}
    for _ in range(RECENT_KEPT):
        end(99.0, "busy")
    clock.time_s = 103.0
    assert recorder.good_rps() == {"busy": RECENT_KEPT / 4.0}, "of a shorter time, where more end in a minute than are kept"


def test_the_goodput_of_task_types_names_the_time_that_it_is_of():
    clock = Stopped()
    bus = MemoryBus()
    bus.silent = True
    recorder = CompletionRecorder(bus, clock, str)
    for sent_s, slo_met in ((39.0, True), (99.0, True), (99.0, False)):
        recorder.ended(completed(sent_s=sent_s, task_type=TaskType.QA, slo_met=slo_met))
    assert recorder.classes() == {"window_s": 60.0, "classes": {"QA": {"ended": 2, "slo_met": 1, "goodput_rate": 0.5}}}
    for _ in range(RECENT_KEPT):
        recorder.ended(completed(sent_s=99.0, task_type=TaskType.QA))
    clock.time_s = 103.0
    found = recorder.classes()
    assert (found["window_s"], found["classes"]["QA"]["ended"]) == (4.0, RECENT_KEPT)


@pytest.mark.parametrize("cost", [-1.0, 2e6, 10**400], ids=["negative", "large", "larger than every float"])
def test_a_cost_out_of_range_is_refused(tmp_path: Path, cost: float):
    file = tmp_path / "hmas.yaml"
    file.write_text(f"engines:\n  - name: a\n    url: http://127.0.0.1:1\n    cost_per_hour: {cost}\n")
    with pytest.raises(ConfigMistakes, match="cost_per_hour"):
        load_config(str(file), {})
