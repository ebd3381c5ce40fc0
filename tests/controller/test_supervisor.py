"""The supervisor on real child processes."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from typing_kit import known

from hmas.controller.runtime import supervisor
from hmas.controller.runtime.child import Child, ChildSpec
from hmas.controller.runtime.supervisor import RestartRule, Supervisor, exit_words

pytestmark = pytest.mark.slow

FAST = RestartRule(first_s=0.01, longest_s=0.05, burst=3, window_s=60.0)
NOTIFY = (
    "import os,socket;s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM);tell=lambda t:s.sendto(t.encode(),os.environ['NOTIFY_SOCKET']);"
)
SERVE = "import signal,sys;signal.signal(signal.SIGTERM,lambda *a:sys.exit(0));"
STUBBORN = "import signal;signal.signal(signal.SIGTERM,signal.SIG_IGN);"
WAIT = "signal.pause()\nsignal.pause()"


def script(code, name="child", **kwargs):
    return ChildSpec(name=name, argv=[sys.executable, "-S", "-c", code], **kwargs)


class Events:
    """Collects child events and lets a test wait for one."""

    def __init__(self):
        self.seen = []
        self.changed = asyncio.Event()

    def __call__(self, event):
        self.seen.append(event)
        self.changed.set()

    def kinds(self, child="child"):
        return [event.kind for event in self.seen if event.child == child]

    async def until(self, kind, count=1, child="child"):
        async with asyncio.timeout(20):
            while self.kinds(child).count(kind) < count:
                self.changed.clear()
                await self.changed.wait()
        return [event for event in self.seen if event.kind == kind and event.child == child][count - 1]


def alive(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


async def until_dead(pid):
    async with asyncio.timeout(10):
        while alive(pid):  # noqa: ASYNC110 - the process is not ours to wait for
            await asyncio.sleep(0.01)


async def test_a_signal_to_a_child_that_has_just_ended_hides_no_end(tmp_path):
    child = Child(script("import sys; sys.exit(3)", notifies=False), notify_dir=tmp_path, on_message=lambda _: None)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop must not hear of the end before the signal
    child.signal(signal.SIGTERM)
    async with asyncio.timeout(10):
        assert await child.ended == 3


async def test_a_killed_child_is_started_again():
    events = Events()
    async with Supervisor([script(SERVE + WAIT)], on_event=events, rule=FAST):
        first = await events.until("ready")
        os.kill(first.pid, signal.SIGKILL)
        crashed = await events.until("crashed")
        assert crashed.detail == "ended by SIGKILL; starts again in 0.0 s"
        second = await events.until("ready", 2)
        assert second.pid != first.pid
        assert alive(second.pid)
    assert events.kinds() == ["started", "ready", "crashed", "started", "ready", "stopped"]
    assert not alive(second.pid)


async def test_readiness_comes_from_the_child():
    events = Events()
    code = NOTIFY + SERVE + "tell('STATUS=loading');tell('READY=1\\nSTATUS=on port 7');" + WAIT
    async with Supervisor([script(code, notifies=True)], on_event=events, rule=FAST) as keeper:
        assert keeper.states() == {"child": "starting"}
        assert await keeper.wait_ready(timeout_s=20) == []
        assert (await events.until("ready")).detail == "on port 7"
        assert keeper.states() == {"child": "ready"}
    assert keeper.states() == {"child": "stopped"}


async def test_a_signal_goes_only_to_a_child_that_is_ready():
    events = Events()
    code = NOTIFY + SERVE + "signal.signal(signal.SIGHUP,lambda *a:sys.exit(5));tell('READY=1');" + WAIT
    async with Supervisor([script(code, notifies=True)], on_event=events, rule=FAST) as keeper:
        assert not keeper.send("child", signal.SIGHUP), "it still starts"
        assert not keeper.send("other", signal.SIGHUP)
        await events.until("ready")
        assert keeper.send("child", signal.SIGHUP)
        assert (await events.until("crashed")).detail.startswith("ended with status 5")
    assert not keeper.send("child", signal.SIGHUP)


async def test_a_stop_while_waiting_to_start_again_starts_nothing():
    for delay_s in (0.0, 0.001, 0.002, 0.005, 0.01, 0.02):
        events = Events()
        async with Supervisor([script(SERVE + WAIT)], on_event=events, rule=FAST):
            os.kill((await events.until("ready")).pid, signal.SIGKILL)
            await events.until("crashed")
            await asyncio.sleep(delay_s)
        assert not any(alive(event.pid) for event in events.seen if event.kind == "started")
        assert events.kinds().count("started") == 1 + events.kinds().count("stopped")


async def test_one_that_never_gets_ready_is_named():
    async with Supervisor([script(SERVE + WAIT, notifies=True)], rule=FAST) as keeper:
        assert await keeper.wait_ready(timeout_s=0.05) == ["child"]


async def test_one_that_keeps_crashing_is_given_up_and_the_others_stay():
    events = Events()
    specs = [script("raise SystemExit(3)", "bad"), script(SERVE + WAIT, "good")]
    async with Supervisor(specs, on_event=events, rule=FAST) as keeper:
        gone = await events.until("given-up", child="bad")
        assert gone.detail == "ended with status 3; it crashes too often; tried again in 300 s"
        assert events.kinds("bad").count("started") == 4
        assert keeper.states() == {"bad": "given-up", "good": "ready"}
        assert await keeper.wait_ready(timeout_s=1) == ["bad"]


async def test_one_that_was_given_up_is_tried_again_once_a_pause_until_it_stays(tmp_path: Path):
    events = Events()
    mended = tmp_path / "mended"
    code = f"import os;os.path.exists({str(mended)!r}) or os._exit(3);" + NOTIFY + SERVE + "tell('READY=1');" + WAIT
    rule = RestartRule(first_s=0.01, longest_s=0.05, burst=3, window_s=60.0, again_s=0.1)
    async with Supervisor([script(code, notifies=True)], on_event=events, rule=rule) as keeper:
        for turn in (1, 2, 3):
            gone = await events.until("given-up", turn)
            assert gone.detail == "ended with status 3; it crashes too often; tried again in 0.1 s"
            assert events.kinds().count("started") == 3 + turn
        mended.touch()
        await events.until("ready")
        assert keeper.states() == {"child": "ready"}


async def test_a_final_exit_code_is_not_tried_again_at_once():
    events = Events()
    async with Supervisor([script("raise SystemExit(2)", final_codes=frozenset({2}))], on_event=events, rule=FAST) as keeper:
        gone = await events.until("given-up")
        assert gone.detail == "ended with status 2; a restart at once would not help; tried again in 300 s"
        assert await keeper.wait_ready(timeout_s=1) in ([], ["child"])
    assert events.kinds() == ["started", "ready", "given-up"]


async def test_one_that_asks_to_be_started_again_has_not_crashed():
    events = Events()
    code = NOTIFY + SERVE + "signal.signal(signal.SIGHUP,lambda *a:sys.exit(7));tell('READY=1');" + WAIT
    spec = script(code, notifies=True, again_codes=frozenset({7}))
    async with Supervisor([spec], on_event=events, rule=FAST) as keeper:
        for turn in range(1, FAST.burst + 3):
            await events.until("ready", turn)
            assert keeper.send("child", signal.SIGHUP)
            assert (await events.until("stopped", turn)).detail.startswith("ended with status 7; starts again in")
    assert "crashed" not in events.kinds()


async def test_losing_an_essential_child_ends_the_run():
    async with Supervisor([script("raise SystemExit(3)", essential=True)], rule=FAST) as keeper:
        assert await asyncio.wait_for(keeper.run(asyncio.Event()), 20) == 1


async def test_a_stop_ends_the_run_cleanly():
    stop = asyncio.Event()
    stop.set()
    async with Supervisor([script(SERVE + WAIT)], rule=FAST) as keeper:
        assert await asyncio.wait_for(keeper.run(stop), 20) == 0


async def test_stages_are_stopped_one_after_the_other():
    events = Events()
    specs = [script(SERVE + WAIT, name, stage=stage) for name, stage in [("engine", 0), ("agent", 1), ("gateway", 2)]]
    async with Supervisor(specs, on_event=events, rule=FAST) as keeper:
        for name in keeper.states():
            await events.until("ready", child=name)
    assert [event.child for event in events.seen if event.kind == "stopped"] == ["gateway", "agent", "engine"]


async def test_one_that_ignores_sigterm_is_killed_after_its_grace():
    events = Events()
    code = NOTIFY + STUBBORN + "tell('READY=1');" + WAIT
    async with Supervisor([script(code, notifies=True, grace_s=0.05)], on_event=events, rule=FAST) as keeper:
        assert await keeper.wait_ready(timeout_s=20) == []
    assert events.kinds()[-2:] == ["killed", "stopped"]
    assert events.seen[-1].detail == "ended by SIGKILL"


async def test_hurry_does_not_wait_for_the_grace():
    hurry = asyncio.Event()
    hurry.set()
    code = NOTIFY + STUBBORN + "tell('READY=1');" + WAIT
    async with Supervisor([script(code, notifies=True, grace_s=60)], rule=FAST) as keeper:
        assert await keeper.wait_ready(timeout_s=20) == []
        await asyncio.wait_for(keeper.stop(hurry), 5)


async def test_a_silent_child_is_killed_and_started_again():
    events = Events()
    code = NOTIFY + SERVE + "tell('READY=1');" + WAIT
    async with Supervisor([script(code, notifies=True, watchdog_s=0.1)], on_event=events, rule=FAST):
        hung = await events.until("hung")
        assert "allowed 0.1 s" in hung.detail
        await events.until("ready", 2)


async def test_a_child_that_hangs_before_it_is_ready_is_killed_and_started_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "START_MOST_S", 0.2)
    events = Events()
    async with Supervisor([script(SERVE + WAIT, notifies=True, watchdog_s=5.0)], on_event=events, rule=FAST):
        assert "allowed 0.2 s" in (await events.until("hung")).detail
        await events.until("started", 2)


async def test_a_stopped_child_is_killed_when_its_time_is_over_and_no_later():
    events = Events()
    code = NOTIFY + SERVE + "import time\ntell('READY=1')\nwhile True:\n tell('WATCHDOG=1'); time.sleep(0.02)"
    async with Supervisor([script(code, notifies=True, watchdog_s=0.8)], on_event=events, rule=FAST):
        first = await events.until("ready")
        os.kill(first.pid, signal.SIGSTOP)
        silent_s = float((await events.until("hung")).detail.split("silent for ")[1].split()[0])
        assert 0.8 <= silent_s < 1.2, "within the limit and a moment, not a quarter of the limit later"
        assert (await events.until("ready", 2)).pid != first.pid


async def test_a_supervisor_that_stood_still_kills_no_child_for_it():
    events = Events()
    code = NOTIFY + SERVE + "import time\ntell('READY=1')\nwhile True:\n tell('WATCHDOG=1'); time.sleep(0.02)"
    async with Supervisor([script(code, notifies=True, watchdog_s=0.5)], on_event=events, rule=FAST):
        await events.until("ready")
        until_s = time.monotonic() + 2.0
        while time.monotonic() < until_s:
            time.sleep(0.05)  # noqa: ASYNC251 - the whole loop stands still, as on a machine that was suspended
        for _ in range(3):
            await asyncio.sleep(0.1)
        assert "hung" not in events.kinds()


async def test_a_child_that_beats_is_left_alone():
    events = Events()
    code = (
        NOTIFY
        + SERVE
        + "import time\ntell('READY=1')\nfor n in range(20):\n tell('WATCHDOG=1'); time.sleep(0.05)\ntell('STATUS=done');"
        + WAIT
    )
    async with Supervisor([script(code, notifies=True, watchdog_s=0.7)], on_event=events, rule=FAST):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(events.until("hung"), 1.0)
        assert "hung" not in events.kinds()


async def test_what_a_child_started_goes_with_it():
    events = Events()
    code = (
        "import subprocess,sys;"
        + NOTIFY
        + "p=subprocess.Popen([sys.executable,'-S','-c','import signal;signal.pause()']);tell(f'READY=1\\nSTATUS={p.pid}');"
        + SERVE
        + WAIT
    )
    async with Supervisor([script(code, notifies=True)], on_event=events, rule=FAST):
        ready = await events.until("ready")
        grandchild = int(ready.detail)
        assert alive(grandchild)
        os.kill(ready.pid, signal.SIGKILL)
        await events.until("crashed")
        await until_dead(grandchild)


async def test_children_end_with_a_supervisor_that_is_killed():
    """The supervisor runs in a process of its own, which is killed with no chance to clean up."""
    program = (
        "import asyncio,sys\n"
        "from hmas.controller.runtime.child import ChildSpec\n"
        "from hmas.controller.runtime.supervisor import Supervisor\n"
        "async def main():\n"
        " spec = ChildSpec(name='c', argv=[sys.executable, '-S', '-c', 'import signal;signal.pause()'])\n"
        " async with Supervisor([spec], on_event=lambda event: event.kind == 'ready' and print(event.pid, flush=True)):\n"
        "  await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    child = int(await asyncio.wait_for(known(process.stdout).readline(), 20))
    assert alive(child)
    process.kill()
    await process.wait()
    await until_dead(child)


async def test_a_program_that_is_not_there_is_told_at_once():
    events = Events()
    specs = [script(SERVE + WAIT, "good"), ChildSpec(name="bad", argv=["/nowhere/program"])]
    with pytest.raises(FileNotFoundError):
        async with Supervisor(specs, on_event=events, rule=FAST):
            pass
    assert events.kinds("good")[-1] == "stopped"


async def test_names_are_unique():
    async with Supervisor([script(SERVE + WAIT)], rule=FAST) as keeper:
        with pytest.raises(ValueError, match="there already"):
            keeper.add(script(SERVE + WAIT))


async def test_a_failing_listener_does_not_stop_the_supervisor():
    def fail(event):
        raise ValueError(event.kind)

    async with Supervisor([script(SERVE + WAIT)], on_event=fail, rule=FAST) as keeper:
        assert await keeper.wait_ready(timeout_s=20) == []


async def test_children_do_not_write_to_the_parents_stdout(capfd):
    events = Events()
    async with Supervisor([script("print('loud', flush=True);" + SERVE + WAIT)], on_event=events, rule=RestartRule()):
        await events.until("ready")
        out, err = capfd.readouterr()
        async with asyncio.timeout(10):
            while "loud" not in err:
                await asyncio.sleep(0.01)
                more = capfd.readouterr()
                out, err = out + more.out, err + more.err
    assert out + capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("code", "words"), [(0, "ended with status 0"), (-9, "ended by SIGKILL"), (-64, "ended by SIGRTMAX"), (-99, "ended by signal 99")]
)
def test_exit_codes_in_words(code, words):
    assert exit_words(code) == words
