"""Options that `hmas simulate`, `hmas sweep` and `hmas plan` share."""

from collections.abc import Callable
from typing import Any

import click

from hmas.lab.studies.case import PRESETS
from hmas.lab.workloads.catalogue import SESSIONS, WORKLOADS

EXIT_INTERRUPTED = 130

ADMISSION = f"What is admitted and kept: {', '.join(PRESETS)}, or settings such as overdue=shed,share=0.5,guard=0.3,fence=no."
FLEET = "Such as 2xa100-qwen3-8b,1xmy.json:n_run=48, or a fleet file (JSON, YAML)."
WORKLOAD = f"NAME:PATH or NAME:option=value,... with NAME one of {', '.join([*WORKLOADS, *SESSIONS])}."
WARMUP = "Seconds at the start that are served, not scored."
DURATION = "Only what arrives within so many seconds of the workload's own time; 0 for all."


def study_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that every study has."""
    options = (
        click.option("--model", default="", help="Model that requests ask for; default: what the fleet serves."),
        click.option("--duration", type=click.FloatRange(0), default=0.0, help=DURATION),
        click.option("--limit", type=click.IntRange(0), default=0, help="Only the first so many requests, or sessions; 0 for all."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def common_settings(options: dict[str, Any]) -> dict[str, Any]:
    """What `study_options`, and `--warmup` where there is one, say of a case."""
    return {
        "model": options["model"],
        "duration_s": options["duration"],
        "limit": options["limit"],
        "warmup_s": options.get("warmup", 0.0),
    }
