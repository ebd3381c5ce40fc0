"""`hmas simulate`: runs a workload on a fleet in virtual time."""

from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.cli.output import EXIT_FAILED, complain, example, hint, json_option, say, say_json
from hmas.cli.studies import EXIT_INTERRUPTED, FLEET, META, WARMUP, WORKLOAD, case_options, case_settings, read_meta, study_options
from hmas.controller.core.errors import ConfigError
from hmas.planning.case import AGENTS, Case, SloTarget, read_agents, read_slo
from hmas.planning.files import write_run
from hmas.planning.fleet import read_fleet
from hmas.planning.loads import Load, open_load
from hmas.planning.progress import Teller, interrupts
from hmas.planning.report import make_report
from hmas.planning.running import Watch, run_case
from hmas.planning.tables import run_tables


@click.command(
    epilog=example(
        "hmas simulate --workload poisson:rate=8,duration=300 --fleet 2xdemo-small",
        "hmas simulate --workload azure:AzureLLMInferenceTrace_conv.csv --fleet 4xa100-qwen3-8b --rate 20 --policy sjf",
        "hmas simulate --workload gamma:rate=8,cv=3,duration=600 --fleet 2xdemo-small --agents statera+meta --out build/gamma",
    )
)
@click.option("--workload", required=True, help=WORKLOAD)
@click.option("--fleet", required=True, help=FLEET)
@case_options
@click.option("--agents", default="none", show_default=True, help=f"Who steers: none, all, or some of {', '.join(AGENTS)}.")
@click.option("--meta", multiple=True, metavar="NAME=VALUE", help=META)
@click.option("--slo", default="", help="Targets for all requests: ttft=MS,tpot=MS; default: the workload's own.")
@study_options
@click.option("--warmup", type=click.FloatRange(0), default=0.0, help=WARMUP)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/simulate"), show_default=True, help="Folder.")
@click.option("--no-requests", is_flag=True, help="Write no requests.csv.")
@click.option("--no-plots", is_flag=True, help="Draw nothing.")
@json_option
@click.pass_context
def simulate(ctx: click.Context, /, **options: Any) -> None:
    """Run a workload on a fleet in virtual time.

    The gateway's own scheduler, router and admission, and the agents' models, control engine models with the fleet's profiles. Writes
    report.json, requests.csv and plots; the same command writes the same bytes.

    After Ctrl-C no new request is sent, running ones are served, and the report covers the part up to there and says so. Exit code 1 if
    the independent check finds an error in the result, 130 after Ctrl-C.
    """
    case = Case(
        workload=options["workload"],
        fleet=read_fleet(options["fleet"]),
        load=options["load"],
        agents=read_agents(options["agents"]),
        meta=read_meta(options["meta"]),
        slo=read_slo(options["slo"])[0] if options["slo"] else SloTarget(),
        **case_settings(options),
    )
    case.check()
    if case.meta and "meta" not in case.agents:
        raise ConfigError(f"meta: {', '.join(options['meta'])} without meta; allowed: with --agents statera+meta or all")
    case, load = _opened(case, options["rate"])
    with interrupts() as asked:
        run = run_case(case, Watch(tell=Teller(load).tell, stop=asked), load)
    report = make_report(run)
    document = write_run(report, options["out"], requests=not options["no_requests"], plots=not options["no_plots"])
    if options["as_json"]:
        say_json(document)
    else:
        say(run_tables(report))
    hint(f"report: {options['out'] / 'report.json'}")
    for text in run.violations:
        complain(f"broken: {text}")
    if run.stopped_s is not None:
        hint(f"stopped at {run.stopped_s:.1f} s of virtual time; the report covers the {len(run.records)} requests up to there")
        ctx.exit(EXIT_INTERRUPTED)
    if run.violations:
        ctx.exit(EXIT_FAILED)


def _opened(case: Case, rate: float | None) -> tuple[Case, Load]:
    """Opens the workload; returns the case, with its load set to the wanted rate, and the workload."""
    load = open_load(case)
    if rate is not None:
        case = msgspec.structs.replace(case, load=rate / load.own_rps)
        load = open_load(case)
    shortest = min(kind.profile.max_model_len for kind in case.fleet.kinds)
    over = load.longer_than(shortest)
    if over:
        hint(f"{over} requests are longer than the {shortest} tokens an engine takes and will fail there; context={shortest} cuts them")
    return case, load
