"""`hmas simulate`: runs a workload on a fleet in virtual time."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
import msgspec

from hmas.cli.output import EXIT_FAILED, check_writable, complain, duration_words, example, hint, json_option, say, say_json
from hmas.cli.studies import EXIT_INTERRUPTED, FLEET, META, WARMUP, WORKLOAD, case_options, case_settings, read_meta, study_options
from hmas.cli.values import Number
from hmas.controller.core.errors import ConfigError
from hmas.controller.runtime.clock import SystemClock
from hmas.planning.case import AGENTS, Case, SloTarget, read_agents, read_slo
from hmas.planning.fleet import read_fleet
from hmas.planning.loads import Load, open_load
from hmas.planning.report import document, make_report, rounded, write_run
from hmas.planning.running import Told, Watch, run_case
from hmas.planning.tables import run_tables

TELL_EVERY_S = 2.0


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
@click.option("--warmup", type=Number(0), default=0.0, help=WARMUP)
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
    check_writable(options["out"], folder=True)
    case, load = _opened(case, options["rate"])
    with _interrupts() as asked:
        run = run_case(case, Watch(tell=_Progress(load).tell, stop=asked), load)
    report = make_report(run)
    whole = rounded(document(report))
    if options["as_json"]:
        say_json(whole)
    else:
        say(run_tables(report))
    write_run(report, whole, options["out"], requests=not options["no_requests"], plots=not options["no_plots"])
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


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Gives a function that returns whether Ctrl-C was pressed, and then also prints a note. A second Ctrl-C ends the command as usual."""
    asked = said = False
    before = signal.getsignal(signal.SIGINT)

    def note(_number: int, _frame: FrameType | None) -> None:
        # The handler prints nothing: in the middle of a write of a progress line, stderr cannot be written to.
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    def pressed() -> bool:
        nonlocal said
        if asked and not said:
            said = True
            hint("stopping: what has been sent is still served; Ctrl-C again ends at once, without a report")
        return asked

    signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


class _Progress:
    """Progress lines on stderr, one every two seconds."""

    def __init__(self, load: Load) -> None:
        self._clock = SystemClock()
        self._load = load
        self._start_s = self._told_s = self._clock.now_s()

    def tell(self, told: Told) -> None:
        """Prints the progress if two seconds have passed."""
        now_s = self._clock.now_s()
        if now_s - self._told_s < TELL_EVERY_S:
            return
        self._told_s = now_s
        wall_s = now_s - self._start_s
        share = told.done / max(1, told.planned)
        left = f", about {duration_words(wall_s * (1.0 - share) / share)} left" if share > 0.02 else ""
        hint(
            f"virtual {told.now_s:.0f} of {self._load.duration_s:.0f} s, {told.done} of {told.planned} requests done; "
            f"wall {wall_s:.0f} s, {told.now_s / wall_s:.0f} times real time{left}"
        )
