"""`hmas simulate`, `hmas sweep`, `hmas plan`: the simulator's questions on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from controller.core.errors import ConfigError
from controller.routing import ROUTERS
from hmas.cli.output import EXIT_FAILED, complain, hint, json_option, say, say_json
from hmas.lab.studies import plan as planning
from hmas.lab.studies import words
from hmas.lab.studies.backends import on_cores, on_ray
from hmas.lab.studies.case import AGENTS, PRESETS, Case, SloTarget, read_admission, read_agents, read_policy, read_slo
from hmas.lab.studies.files import write_json, write_run, write_sweep
from hmas.lab.studies.fleet import read_fleet, read_kinds
from hmas.lab.studies.grid import AXES, make_grid, points_of, read_grid
from hmas.lab.studies.loads import Load, open_load
from hmas.lab.studies.progress import Teller, interrupts
from hmas.lab.studies.report import make_report, rounded
from hmas.lab.studies.running import Watch, run_case
from hmas.lab.studies.sweep import Kept, Row, run_points
from hmas.lab.workloads.catalogue import WORKLOADS

EXIT_INTERRUPTED = 130
_TRACES = {".csv": "azure", ".jsonl": "mooncake"}

ADMISSION = f"What is admitted and kept: {', '.join(PRESETS)}, or settings such as overdue=shed,share=0.5,guard=0.3,fence=no."
FLEET = "Such as 2xa100-qwen3-8b,1xmy.json:n_run=48, or a fleet file (JSON, YAML)."
WORKLOAD = f"NAME:PATH or NAME:option=value,... with NAME one of {', '.join(WORKLOADS)}."
WARMUP = "Seconds at the start that are served, not scored."
DURATION = "Only what arrives within so many seconds of the workload's own time; 0 for all."


def study_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that every study has."""
    options = (
        click.option("--model", default="", help="Model that requests ask for; default: what the fleet serves."),
        click.option("--duration", type=click.FloatRange(0), default=0.0, help=DURATION),
        click.option("--limit", type=click.IntRange(0), default=0, help="Only the first so many requests; 0 for all."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.option("--workload", required=True, help=WORKLOAD)
@click.option("--fleet", required=True, help=FLEET)
@click.option("--policy", default="edf", show_default=True, help="Order of the queue, with hints: two-lane:threshold_ms=500.")
@click.option("--router", type=click.Choice(list(ROUTERS)), default="least-loaded", show_default=True, help="How an instance is chosen.")
@click.option("--admission", default="gateway", show_default=True, help=ADMISSION)
@click.option("--agents", default="none", show_default=True, help=f"Who steers: none, all, or some of {', '.join(AGENTS)}.")
@click.option("--slo", default="", help="Targets for all requests: ttft=MS,tpot=MS; default: the workload's own.")
@click.option("--load", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Times the workload's own rate.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Mean rate to scale to, requests/s, instead of --load.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="What is drawn follows from it.")
@study_options
@click.option("--warmup", type=click.FloatRange(0), default=0.0, help=WARMUP)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/simulate"), show_default=True, help="Folder.")
@click.option("--no-requests", is_flag=True, help="Write no requests.csv.")
@click.option("--no-plots", is_flag=True, help="Draw nothing.")
@json_option
@click.pass_context
def simulate(ctx: click.Context, /, **options: Any) -> None:
    """Run a workload on a fleet in virtual time.

    The gateway's own scheduler, router, admission and agents' models drive engine models with the fleet's profiles. Writes report.json,
    requests.csv and plots; the same command writes the same bytes.

    Ctrl-C stops in order: what has been sent is served, the report covers the part up to there and says so. Exit code 1 when the
    independent checker finds the result at fault, 130 after Ctrl-C.

    \b
    Examples:
      hmas simulate --workload poisson:rate=8,duration=300 --fleet 2xdemo-small
      hmas simulate --workload azure:AzureLLMInferenceTrace_conv.csv --fleet 4xa100-qwen3-8b --rate 20 --policy sjf
      hmas simulate --workload gamma:rate=8,cv=3,duration=600 --fleet 2xdemo-small --agents statera+meta --out build/gamma
    """  # noqa: D301 - click reads \b as "do not rewrap"
    policy, hints = read_policy(options["policy"])
    case = Case(
        workload=options["workload"],
        fleet=read_fleet(options["fleet"]),
        load=options["load"],
        policy=policy,
        hints=hints,
        router=options["router"],
        admission=read_admission(options["admission"]),
        agents=read_agents(options["agents"]),
        slo=read_slo(options["slo"])[0] if options["slo"] else SloTarget(),
        seed=options["seed"],
        **_common(options),
    )
    case.check()
    case, load = _opened(case, options["rate"])
    with interrupts() as asked:
        run = run_case(case, Watch(tell=Teller(load).tell, stop=asked), load)
    report = make_report(run)
    document = write_run(report, options["out"], requests=not options["no_requests"], plots=not options["no_plots"])
    if options["as_json"]:
        say_json(document)
    else:
        say(words.run_tables(report))
    hint(f"report: {options['out'] / 'report.json'}")
    for text in run.violations:
        complain(f"broken: {text}")
    if run.stopped_s is not None:
        hint(f"stopped at {run.stopped_s:.1f} s of virtual time; the report covers the {len(run.records)} requests up to there")
        ctx.exit(EXIT_INTERRUPTED)
    if run.violations:
        ctx.exit(EXIT_FAILED)


@click.command()
@click.option("--grid", type=click.Path(dir_okay=False, path_type=Path), help="Settings as a JSON object; options below go before it.")
@click.option("--workload", help=WORKLOAD)
@click.option("--fleet", multiple=True, help=FLEET + " Repeat it for more.")
@click.option("--policy", help="Orders, with commas between.")
@click.option("--n-run", help="Windows of all instances, with commas between; 0 for the fleet's own.")
@click.option("--load", help="Multiples of the workload's own rate, with commas between.")
@click.option("--router", help="Routers, with commas between.")
@click.option("--admission", multiple=True, help=ADMISSION + " Repeat it for more.")
@click.option("--agents", help="Such as none,statera,statera+meta.")
@click.option("--seed", help="Seeds: 1,2,5 or 1..5.")
@click.option("--slo", help="Targets for all requests: ttft=MS,tpot=MS.")
@study_options
@click.option("--warmup", type=click.FloatRange(0), default=0.0, help=WARMUP)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/sweep"), show_default=True, help="Folder.")
@click.option("--backend", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Where it runs.")
@click.option("--workers", type=click.IntRange(0), default=0, help="Processes of the local backend; default: one per core.")
@click.option("--ray-address", default="", help="Ray cluster; default: what RAY_ADDRESS names, else a local one.")
@click.option("--no-plots", is_flag=True, help="Draw nothing.")
@json_option
@click.pass_context
def sweep(ctx: click.Context, /, **options: Any) -> None:
    """Run every combination of settings, on all cores or a Ray cluster.

    Each result is appended to results.jsonl as it finishes; then sweep.csv, sweep.json and plots are made of them. The same command again
    goes on where the last one stopped. Ctrl-C keeps what is done (exit code 130); a case that failed gives exit code 1 and is tried again
    next time. On a Ray cluster, files that the workload names must lie at the same path on every node.

    \b
    Examples:
      hmas sweep --workload poisson:rate=8,duration=300 --fleet 2xdemo-small --policy fcfs,edf,sjf --n-run 16,32,64 --seed 1..3
      hmas sweep --grid grid.json --backend ray --ray-address auto
    """  # noqa: D301 - click reads \b as "do not rewrap"
    grid = make_grid(_grid_settings(options))
    points = points_of(grid)
    # A workload that cannot be made is told before a thousand workers find it out.
    open_load(points[0].case)
    out: Path = options["out"]
    out.mkdir(parents=True, exist_ok=True)
    kept = Kept(out / "results.jsonl")
    had = len(kept.of(points))
    if had:
        hint(f"{had} of {len(points)} cases are done already")
    backend = on_ray(options["ray_address"]) if options["backend"] == "ray" else on_cores(options["workers"])
    errors: list[Row] = []
    interrupted = False
    try:
        run_points(points, kept, backend, _row_teller(len(points), errors))
    except KeyboardInterrupt:
        interrupted = True
    rows = kept.of(points)
    document = write_sweep(grid, points, rows, out, plots=not options["no_plots"])
    if options["as_json"]:
        say_json(document)
    elif rows:
        say(words.sweep_table(rows))
    hint(f"results: {out / 'sweep.csv'}")
    for row in errors:
        complain(f"failed: {row.axes}: {row.error}")
    broken = sum(row.figures["violations"] > 0 for row in rows)
    if broken:
        complain(f"broken: the independent checker finds {broken} results at fault; `hmas simulate` of one of them says how")
    if interrupted:
        hint(f"stopped; {len(rows)} of {len(points)} cases are done, the same command goes on from there")
        ctx.exit(EXIT_INTERRUPTED)
    if errors or broken:
        ctx.exit(EXIT_FAILED)


@click.command()
@click.option("--trace", "workload", required=True, help=f"A trace file (Azure CSV, Mooncake JSONL), or a workload: {WORKLOAD}")
@click.option("--slo", required=True, help="ttft=MS,tpot=MS[,share=0.95]; a target left out is each request's own.")
@click.option("--fleet", required=True, help=FLEET + " Prices an hour: 4xa100-qwen3-8b:price=1.9.")
@click.option("--kinds", default="", help="Kinds that could be added, in the same form; default: those of the fleet.")
@click.option("--load", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Wanted load, times the own rate.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Wanted rate, requests/s, instead of --load.")
@click.option("--policy", default="edf", show_default=True, help="Order of the queue.")
@click.option("--router", type=click.Choice(list(ROUTERS)), default="least-loaded", show_default=True, help="How an instance is chosen.")
@click.option("--admission", default="gateway", show_default=True, help=ADMISSION)
@click.option("--tolerance", type=click.FloatRange(0.001, 0.5), default=0.02, show_default=True, help="Of the loads found, relative.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="What is drawn follows from it.")
@study_options
@click.option("--workers", type=click.IntRange(0), default=0, help="Processes; default: one per core.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the plan as JSON here, too.")
@json_option
def plan(**options: Any) -> None:
    """Answer a capacity planner: what load is held, what is needed, what the next instance buys.

    A load is held when at least the wanted share of requests keeps both targets. All runs have the same requests, only denser or thinner.

    \b
    Examples:
      hmas plan --trace AzureLLMInferenceTrace_conv.csv --slo ttft=2000,tpot=60 --fleet 4xa100-qwen3-8b
      hmas plan --trace azure:conv.csv?limit=5000 --slo ttft=2000,tpot=60,share=0.99 --rate 40 \\
                --fleet 4xa100-qwen3-8b:price=1.9 --kinds a100-qwen3-8b:price=1.9,h100-qwen3-8b:price=3.2
    """  # noqa: D301 - click reads \b as "do not rewrap"
    slo, share = read_slo(options["slo"])
    policy, hints = read_policy(options["policy"])
    case = Case(
        workload=_workload_of(options["workload"]),
        fleet=read_fleet(options["fleet"]),
        policy=policy,
        hints=hints,
        router=options["router"],
        admission=read_admission(options["admission"]),
        slo=slo,
        seed=options["seed"],
        **_common(options),
    )
    case.check()
    load = open_load(case)
    wish = planning.Wish(
        case=case,
        share=share,
        load=options["rate"] / load.own_rps if options["rate"] else options["load"],
        kinds=read_kinds(options["kinds"]) if options["kinds"] else case.fleet.kinds,
        tolerance=options["tolerance"],
    )
    planning.check_wish(wish)
    made = planning.make_plan(wish, load, on_cores(options["workers"]), hint)
    document = rounded(planning.document(made))
    if options["out"]:
        write_json(options["out"], document)
    if options["as_json"]:
        say_json(document)
    else:
        say(words.plan_text(made))


def _common(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": options["model"],
        "duration_s": options["duration"],
        "limit": options["limit"],
        "warmup_s": options.get("warmup", 0.0),
    }


def _opened(case: Case, rate: float | None) -> tuple[Case, Load]:
    """The case with its load set to a wanted rate, and its workload."""
    load = open_load(case)
    if rate is not None:
        case = msgspec.structs.replace(case, load=rate / load.own_rps)
        load = open_load(case)
    shortest = min(kind.profile.max_model_len for kind in case.fleet.kinds)
    over = load.longer_than(shortest)
    if over:
        hint(f"{over} requests are longer than the {shortest} tokens an engine takes and will fail there; context={shortest} cuts them")
    return case, load


def _workload_of(text: str) -> str:
    """A workload's text as it is, or a file's path with the reader that its name speaks for."""
    if text.partition(":")[0].partition("?")[0] in WORKLOADS or text.lstrip().startswith("{"):
        return text
    path = Path(text.partition("?")[0])
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
    if suffix not in _TRACES:
        raise ConfigError(f"--trace is {text!r}; allowed: a file of type {', '.join(_TRACES)} (also .gz), or {WORKLOAD}")
    return f"{_TRACES[suffix]}:{text}"


def _grid_settings(options: dict[str, Any]) -> dict[str, Any]:
    settings = dict(read_grid(options["grid"])) if options["grid"] else {}
    for name in ("workload", "slo"):
        if options[name]:
            settings[name] = options[name]
    for name in ("fleet", "admission"):
        if options[name]:
            settings[name] = list(options[name])
    for name in ("policy", "n_run", "load", "router", "agents"):
        if options[name]:
            settings[name] = [part.strip() for part in options[name].split(",")]
    if options["seed"]:
        settings["seed"] = _seeds(options["seed"])
    return settings | {name: value for name, value in _common(options).items() if value}


def _seeds(text: str) -> list[int]:
    first, dots, last = text.partition("..")
    try:
        return list(range(int(first), int(last) + 1)) if dots else [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seed is {text!r}; allowed: such as 1,2,5 or 1..5") from None


def _row_teller(total: int, errors: list[Row]) -> Callable[[Row, int], None]:
    def tell(row: Row, left: int) -> None:
        chosen = ", ".join(f"{name} {row.axes[name]}" for name in AXES)
        if row.error:
            errors.append(row)
        came = f"failed: {row.error}" if row.error else f"goodput rate {row.figures['goodput_rate']:.4f}"
        hint(f"{total - left} of {total}: {chosen}: {came}")

    return tell
