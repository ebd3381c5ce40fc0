"""`hmas plan`: capacity planning."""

from pathlib import Path
from typing import Any

import click

from hmas.cli.output import check_writable, example, hint, json_option, say, say_json
from hmas.cli.studies import FLEET, WORKLOAD, case_options, case_settings, study_options
from hmas.cli.values import Number
from hmas.controller.core.errors import ConfigError
from hmas.planning.backends import on_cores
from hmas.planning.case import Case, read_slo
from hmas.planning.fleet import read_fleet
from hmas.planning.loads import open_load
from hmas.planning.plan import check_question, document, make_plan
from hmas.planning.probing import Question
from hmas.planning.report import rounded, write_json
from hmas.planning.tables import plan_text
from hmas.workloads.catalogue import names

_TRACES = {".csv": "azure", ".jsonl": "mooncake"}


@click.command(
    epilog=example(
        "hmas plan --trace AzureLLMInferenceTrace_conv.csv --slo ttft=2000,tpot=60 --fleet 4xa100-qwen3-8b",
        "hmas plan --trace conv.csv.gz --limit 5000 --slo ttft=2000,tpot=60,share=0.99 --rate 40 \\",
        "          --fleet 4xa100-qwen3-8b:price=1.9 --kinds a100-qwen3-8b:price=1.9,h100-qwen3-8b:price=3.2",
    )
)
@click.option("--trace", "workload", required=True, help=f"A trace file (Azure CSV, Mooncake JSONL), or a workload: {WORKLOAD}")
@click.option("--slo", required=True, help="ttft=MS,tpot=MS[,share=0.95]; a target left out is each request's own.")
@click.option("--fleet", required=True, help=FLEET + " Prices an hour: 4xa100-qwen3-8b:price=1.9.")
@click.option("--kinds", default="", help="Kinds that could be added, in the same form; default: those of the fleet.")
@case_options
@click.option("--tolerance", type=Number(0.001, 0.5), default=0.02, show_default=True, help="Of the loads found, relative.")
@study_options
@click.option("--workers", type=click.IntRange(0), default=0, help="Processes; default: one per core.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the plan as JSON here, too.")
@json_option
def plan(**options: Any) -> None:
    """Plan capacity: what load is held, what is needed, what the next instance buys.

    A load is held if at least the wanted share of requests meets both targets. All runs have the same requests at a different rate.
    """
    if options["out"]:
        check_writable(options["out"])
    slo, share = read_slo(options["slo"], share=True)
    case = Case(workload=_workload_of(options["workload"]), fleet=read_fleet(options["fleet"]), slo=slo, **case_settings(options))
    case.check()
    load = open_load(case)
    wish = Question(
        case=case,
        share=share,
        load=options["rate"] / load.own_rps if options["rate"] else options["load"],
        kinds=read_fleet(options["kinds"]).kinds if options["kinds"] else case.fleet.kinds,
        tolerance=options["tolerance"],
    )
    check_question(wish)
    made = make_plan(wish, load, on_cores(options["workers"]), hint)
    whole = rounded(document(made))
    if options["as_json"]:
        say_json(whole)
    else:
        say(plan_text(made))
    if options["out"]:
        write_json(options["out"], whole)


def _workload_of(text: str) -> str:
    """A workload's text unchanged, or a file's path with the reader that fits its suffix."""
    if text.partition(":")[0].partition("?")[0] in names():
        return text
    path = Path(text.partition("?")[0])
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
    if suffix not in _TRACES:
        raise ConfigError(f"--trace is {text!r}; allowed: a file of type {', '.join(_TRACES)} (also .gz), or {WORKLOAD}")
    return f"{_TRACES[suffix]}:{text}"
