"""What the commands of live comparisons share: the options for engine and runs, and how a comparison is started."""

from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import click

from hmas.cli.output import duration_words, hint
from hmas.loadgen.traces import read_trace
from hmas_lab.demo_vllm.cli import default_trace
from hmas_lab.onvllm.comparison import Contest
from hmas_lab.onvllm.running import compare_on_vllm, seconds_of
from hmas_lab.vllm_engine import VllmServer

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

page_option = click.option("--page", type=FILE, help="Run nothing: write what lies in --out into this page, between its markers.")


def engine_options(*, seconds: float, load: float, trace: bool = True, when: str = "") -> Decorator:
    """Options for vLLM and for how long, how often and at which load it is put to work.

    Args:
        seconds: Default of the scored seconds.
        load: Default of the mean rate.
        trace: Whether requests come from a trace that can be chosen.
        when: Stands before every help text, where a command has other ways to run.
    """

    def option(name: str, kind: click.ParamType[Any], text: str, default: float | None = None) -> Decorator:
        text = f"{when}{text[0].lower()}{text[1:]}" if when else text
        return click.option(name, type=kind, default=default, show_default=True, help=text)

    options = [
        option("--vllm-python", click.Path(path_type=Path), "Interpreter of the environment that holds vLLM."),
        option("--model", click.Path(path_type=Path), "Model directory (scripts/build_tiny_model.py)."),
        *([option("--trace", FILE, "Trace with times and lengths; default: Azure's under HMAS_DATA_DIR, else drawn.")] if trace else []),
        option("--seconds", click.FloatRange(4, 600), "Scored seconds of one run.", seconds),
        option("--blocks", click.IntRange(1, 20), "Repetitions of all runs.", 5),
        option("--load", click.FloatRange(0.1, 2.0), "Mean rate over measured capacity.", load),
    ]
    return lambda command: reduce(lambda decorated, decorate: decorate(decorated), reversed(options), command)


def run_contest(
    contest: Contest,
    options: Mapping[str, Any],
    folder: Path,
    *,
    on_block: Callable[[dict[str, Any]], None],
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Tells about how long the comparison takes, and makes it on a vLLM as `engine_options` say; otherwise as `compare_on_vllm`."""
    trace = read_trace(options["trace"]) if options["trace"] else default_trace()
    hint(f"about {duration_words(sum(length for _, length in seconds_of(contest)))}: {len(contest.names)} runs a block")
    server = VllmServer(python=options["vllm_python"], model=options["model"])
    return compare_on_vllm(contest, server, trace, folder, on_block=on_block, config=config)
