"""The heartbeat keeps the model's time, whatever the timers do; in virtual time."""

import asyncio
import selectors

import pytest

from hmas.engines.sim.model import EngineModel, SimRequest
from hmas.engines.sim.profile import load_profile
from hmas.engines.sim.streams import MAX_CATCH_UP_S, Driver

IDLE_S, UNDER_WAY_S = 5.0, 0.2
"""In virtual time: nobody waits for them."""


class Jump(selectors.SelectSelector):
    """Waits for nothing: the loop's time jumps instead."""

    def __init__(self, loop: "VirtualLoop") -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        if timeout:
            self.loop.now_s += timeout + self.loop.late_s
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while there is work, and jumps to the next timer, `late_s` beyond it, when there is none."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.late_s = 0.0
        super().__init__(Jump(self))

    def time(self) -> float:
        return self.now_s


class Recorder:
    """A sink that notes when each token came."""

    def __init__(self, loop: VirtualLoop, *, leaves_after: int | None = None) -> None:
        self.loop = loop
        self.times: list[float] = []
        self.aborted = False
        self.done = loop.create_future()
        self.leaves_after = leaves_after

    def token(self, event) -> bool:
        self.times.append(self.loop.time())
        if event.finished:
            self.done.set_result(None)
        return self.leaves_after is None or len(self.times) < self.leaves_after

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def loop():
    loop = VirtualLoop()
    yield loop
    loop.close()


def drive(loop: VirtualLoop, scenario) -> Driver:
    async def run() -> Driver:
        driver = Driver(EngineModel(load_profile("demo-small")))
        task = asyncio.create_task(driver.run())
        await scenario(driver)
        task.cancel()
        await asyncio.wait([task])
        return driver

    return loop.run_until_complete(run())


def model_time_s(tokens: int) -> float:
    model = EngineModel(load_profile("demo-small"))
    model.add(SimRequest("a", 100, tokens))
    now_s = 0.0
    while (result := model.step(now_s)) is not None:
        now_s = result.end_s
    return now_s


@pytest.mark.parametrize("late_s", [0.0, 0.004])
def test_late_timers_do_not_add_up(loop, late_s):
    loop.late_s = late_s
    recorder = Recorder(loop)

    async def scenario(driver):
        driver.start(SimRequest("a", 100, 200), recorder)
        await recorder.done

    driver = drive(loop, scenario)
    assert recorder.times[-1] - 1000.0 == pytest.approx(model_time_s(200) + late_s, abs=1e-6)
    assert driver.stalled_s == 0


def test_a_host_that_stalls_is_counted_and_not_caught_up(loop):
    recorder = Recorder(loop)

    async def scenario(driver):
        driver.start(SimRequest("a", 100, 20), recorder)
        await asyncio.sleep(0.1)
        loop.now_s += 1.0
        await recorder.done

    driver = drive(loop, scenario)
    assert driver.stalled_s == pytest.approx(1.0, abs=2 * MAX_CATCH_UP_S)
    assert recorder.times[-1] - 1000.0 == pytest.approx(model_time_s(20) + 1.0, abs=2 * MAX_CATCH_UP_S)
    gaps = [after - before for before, after in zip(recorder.times, recorder.times[1:], strict=False)]
    assert sum(gap < 0.001 for gap in gaps) <= 1, "no burst after the stall"


def test_an_idle_engine_begins_at_once(loop):
    first, second = Recorder(loop), Recorder(loop)

    async def scenario(driver):
        driver.start(SimRequest("a", 100, 1), first)
        await first.done
        await asyncio.sleep(IDLE_S)
        driver.start(SimRequest("b", 100, 1), second)
        await second.done

    drive(loop, scenario)
    assert second.times[0] - first.times[0] - IDLE_S == pytest.approx(model_time_s(1), abs=1e-6)


def test_dropped_and_aborted_requests_get_no_more_tokens(loop):
    leaves, dropped, aborted, stays = Recorder(loop, leaves_after=3), Recorder(loop), Recorder(loop), Recorder(loop)

    async def scenario(driver):
        for name, sink in (("leaves", leaves), ("dropped", dropped), ("aborted", aborted), ("stays", stays)):
            driver.start(SimRequest(name, 10, 50), sink)
        await asyncio.sleep(UNDER_WAY_S)
        driver.drop("dropped")
        assert driver.abort("aborted")
        assert not driver.abort("aborted")
        seen = len(dropped.times), len(aborted.times)
        await stays.done
        assert (len(dropped.times), len(aborted.times)) == seen
        assert driver.model.idle

    drive(loop, scenario)
    assert len(leaves.times) == 3
    assert len(stays.times) == 50
    assert (aborted.aborted, dropped.aborted) == (True, False)
