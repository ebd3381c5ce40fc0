"""What `make setup-vllm` adds to vLLM's environment, so that its processes leave their core to others while they wait."""

import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WAIT = "import os, time; began = time.perf_counter(); [os.sched_yield() for _ in range(20)]; print(time.perf_counter() - began)"


def test_processes_of_an_environment_sleep_where_they_would_spin(tmp_path):
    venv.create(tmp_path, symlinks=True)
    python = tmp_path / "bin" / "python"
    subprocess.run([python, ROOT / "scripts" / "quiet_waits.py"], check=True)
    waited_s = float(subprocess.check_output([python, "-c", WAIT]))
    assert waited_s >= 20 * 1e-4
