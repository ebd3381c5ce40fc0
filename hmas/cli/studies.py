"""Options that `hmas simulate`, `hmas sweep` and `hmas plan` share."""

from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from hmas.cli.values import Number
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.routing.registry import DEFAULT_ROUTER, ROUTERS
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.planning.case import PRESETS, read_admission, read_policy
from hmas.workloads.catalogue import names

EXIT_INTERRUPTED = 130

ADMISSION = f"What is admitted and kept: {', '.join(PRESETS)}, or settings such as overdue=shed,late_service_share=0.5,guard=0.3,fence=no."
FLEET = "Such as 2xa100-qwen3-8b,1xmy.json:n_run=48."
WORKLOAD = f"NAME:PATH or NAME:option=value,... with NAME one of {', '.join(names())}."
ROUTER = f"How an instance is chosen: {', '.join(ROUTERS)}, or a plugin's router; NAME:SCORER=WEIGHT:... changes weights."
POLICY = "Order of the queue, with parameters: two-lane:threshold_ms=500."
META = "Setting of meta, such as selector=rules or judge=no; repeat it for more."
WARMUP = "Seconds at the start that are served, not scored."
DURATION = "Only what arrives within so many seconds of the workload's own time; 0 for all."


def case_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of one case: policy, router, admission, load, rate and seed."""
    options = (
        click.option("--policy", default=DEFAULT_POLICY, show_default=True, help=POLICY),
        click.option("--router", default=DEFAULT_ROUTER, show_default=True, help=ROUTER),
        click.option("--admission", default="gateway", show_default=True, help=ADMISSION),
        click.option("--load", type=Number(0, min_open=True), default=1.0, show_default=True, help="Times its own rate."),
        click.option("--rate", type=Number(0, min_open=True), help="Mean rate, requests/s, instead of --load."),
        click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="What is drawn follows from it."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def case_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of a case from `case_options` and `study_options`, apart from its load."""
    policy, parameters = read_policy(options["policy"])
    return common_settings(options) | {
        "policy": policy,
        "parameters": parameters,
        "router": options["router"],
        "admission": read_admission(options["admission"]),
        "seed": options["seed"],
    }


def study_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that every study has."""
    options = (
        click.option("--model", default="", help="Model that requests ask for; default: what the fleet serves."),
        click.option("--duration", type=Number(0), default=0.0, help=DURATION),
        click.option("--limit", type=click.IntRange(0), default=0, help="Only the first so many requests, or sessions; 0 for all."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def read_meta(texts: Sequence[str]) -> dict[str, str | int | float | bool]:
    """Settings of meta from texts such as `selector=rules`; names as in the configuration's `agents`, without `meta_`.

    Raises:
        ConfigError: A setting is unknown, or a value is out of range.
    """
    known = [name.removeprefix("meta_") for name in AgentsConfig.__struct_fields__ if name.startswith("meta_")]
    found: dict[str, str | int | float | bool] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise ConfigError(f"meta: {text!r}; allowed: NAME=VALUE with NAME one of {', '.join(known)}")
        value = {"yes": "true", "no": "false"}.get(value, value)
        try:
            found[f"meta_{name}"] = getattr(msgspec.convert({f"meta_{name}": value}, AgentsConfig, strict=False), f"meta_{name}")
        except msgspec.ValidationError as error:
            raise ConfigError(f"meta: {name} is {value!r}: {error}") from error
    return found


def common_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of a case from `study_options`, and from `--warmup` if the command has it."""
    return {"model": options["model"], "duration_s": options["duration"], "limit": options["limit"], "warmup_s": options.get("warmup", 0.0)}
