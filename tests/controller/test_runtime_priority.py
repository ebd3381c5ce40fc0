"""Agents leave the processor to whatever serves."""

import subprocess
import sys

import pytest

PROGRAM = """
import os
from hmas.controller.runtime.process import set_niceness
set_niceness(7, spare_cpu_only={spare})
set_niceness(3, spare_cpu_only={spare})
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) == os.SCHED_IDLE)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know no SCHED_IDLE")
@pytest.mark.parametrize("spare", [True, False])
def test_an_agent_takes_idle_processors_only_where_it_is_asked_to(spare):
    said = subprocess.run([sys.executable, "-c", PROGRAM.format(spare=spare)], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["7", str(spare)]
