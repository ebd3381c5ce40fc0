"""The report in a process of its own that runs the engine model as it is written: a compiled class takes no subclass that is not."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from hmas.controller.core.errors import HmasError
from hmas.engines.sim import model

_CHILD = "HMAS_FIDELITY_CHILD"


def is_compiled() -> bool:
    """Whether this process runs the compiled engine model (`make compile`)."""
    return not str(model.__file__).endswith(".py")


def report_from_sources(options: Sequence[str]) -> dict[str, Any]:
    """What `hmas-lab fidelity --json` says with these options, without the compiled form on the path; its progress goes to stderr.

    Raises:
        HmasError: The process fails, or has nothing but the compiled form either.
    """
    if os.environ.get(_CHILD):
        raise HmasError("the fidelity report needs the engine model uncompiled: run it without build/compiled on PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {_CHILD: "1"}
    command = [sys.executable, "-m", "hmas_lab", "fidelity", "--json", *options]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise HmasError(f"hmas-lab fidelity ended with status {done.returncode}; what it said stands above")
    document: dict[str, Any] = json.loads(done.stdout)
    return document
