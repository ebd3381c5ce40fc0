"""How long the process of an agent waits for slow work when it ends."""

import subprocess
import sys

SCRIPT = """
import asyncio, sys, time
from hmas.agents.runtime import work

async def main():
    lane = work.Lane("slow")
    def piece():
        time.sleep(float(sys.argv[1]))
        print("done", flush=True)
    running = asyncio.create_task(lane.run(piece))
    await asyncio.sleep(0.1)
    running.cancel()
    lane.close()

work.EXIT_WAIT_S = float(sys.argv[2])
asyncio.run(main())
"""


def ended(work_s: float, wait_s: float) -> str:
    command = [sys.executable, "-c", SCRIPT, str(work_s), str(wait_s)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30.0, check=True).stdout


def test_a_question_to_a_server_that_hangs_does_not_hold_up_the_end_of_the_process():
    assert ended(120.0, 0.2) == ""


def test_work_that_takes_a_moment_is_finished_first():
    assert ended(0.5, 20.0) == "done\n"
