"""Makes vLLM's processes sleep where they would spin; `make setup-vllm` installs it into vLLM's environment.

vLLM's engine core and its workers wait for each other in loops of `sched_yield`. That is fast where each has a core to itself. Where they
share two cores with a gateway and a load tool, it takes half of the machine, and Linux 6.18 lets a process that sleeps beside such a loop
wait up to 1.3 s for its turn. A sleep of a tenth of a millisecond gives the core back.

    build/vllm/bin/python scripts/quiet_waits.py     # installs it; without hmas_quiet_waits.pth in site-packages it is off again
"""

import os
import shutil
import sysconfig
import time
from pathlib import Path

SLEEP_S = 1e-4
NAME = "hmas_quiet_waits"


def sleep_instead_of_spinning() -> None:
    """Replaces `os.sched_yield` in this process; vLLM looks it up at each call."""
    os.sched_yield = lambda: time.sleep(SLEEP_S)


def install(site_packages: Path) -> None:
    """Every process of the environment with this folder replaces it at its start."""
    shutil.copyfile(__file__, site_packages / f"{NAME}.py")
    (site_packages / f"{NAME}.pth").write_text(f"import {NAME}; {NAME}.sleep_instead_of_spinning()\n", encoding="utf-8")


if __name__ == "__main__":
    install(Path(sysconfig.get_paths()["purelib"]))
