"""`hmas sweep`: runs every combination of settings in virtual time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hmas.cli.output import EXIT_FAILED, check_writable, complain, duration_words, example, hint, json_option, say, say_json
from hmas.cli.studies import ADMISSION, EXIT_INTERRUPTED, FLEET, WARMUP, WORKLOAD, common_settings, study_options
from hmas.cli.values import Number
from hmas.controller.core.errors import ConfigError
from hmas.controller.runtime.clock import SystemClock
from hmas.planning.backends import on_cores
from hmas.planning.loads import open_load
from hmas.planning.sweep import AXES, MAX_CASES, Grid, Kept, Row, make_grid, points_of, run_points, write_sweep
from hmas.planning.tables import sweep_table


@click.command(
    epilog=example(
        "hmas sweep --workload poisson:rate=8,duration=300 --fleet 2xdemo-small --policy fcfs,edf,sjf --n-run 16,32,64 --seed 1..3",
    )
)
@click.option("--workload", required=True, help=WORKLOAD)
@click.option("--fleet", multiple=True, required=True, help=FLEET + " Repeat it for more.")
@click.option("--policy", help="Orders, with commas between.")
@click.option("--n-run", help="Windows of all instances, with commas between; 0 for the fleet's own.")
@click.option("--load", help="Multiples of the workload's own rate, with commas between.")
@click.option("--router", help="Routers, with commas between.")
@click.option("--admission", multiple=True, help=ADMISSION + " Repeat it for more.")
@click.option("--agents", help="Such as none,statera,statera+meta.")
@click.option("--seed", help="Seeds: 1,2,5 or 1..5.")
@click.option("--slo", help="Targets for all requests: ttft=MS,tpot=MS.")
@study_options
@click.option("--warmup", type=Number(0), default=0.0, help=WARMUP)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/sweep"), show_default=True, help="Folder.")
@click.option("--workers", type=click.IntRange(0), default=0, help="Processes; default: one per core.")
@click.option("--no-plots", is_flag=True, help="Draw nothing.")
@json_option
@click.pass_context
def sweep(ctx: click.Context, /, **options: Any) -> None:
    """Run every combination of settings, on all cores.

    Each result is appended to results.jsonl as it finishes; then sweep.csv, sweep.json and plots are made from them. The same command
    continues where the last one stopped. Ctrl-C keeps finished results (exit code 130). A case that failed gives exit code 1 and is tried
    again next time.
    """
    grid = make_grid(_grid_settings(options))
    points = points_of(grid)
    # An invalid workload is reported here, before a thousand workers fail on it.
    open_load(points[0].case)
    out: Path = options["out"]
    check_writable(out, folder=True)
    kept = Kept(out / "results.jsonl")
    had = len(kept.of(points))
    if had:
        hint(f"{had} of {len(points)} cases are done already")
    errors: list[Row] = []
    interrupted = False
    try:
        run_points(points, kept, on_cores(options["workers"]), _row_teller(grid, len(points), len(points) - had, errors))
    except KeyboardInterrupt:
        interrupted = True
    rows = kept.of(points)
    document = write_sweep(grid, points, rows, out, plots=not options["no_plots"])
    if options["as_json"]:
        say_json(document)
    elif rows:
        say(sweep_table(rows))
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


def _grid_settings(options: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {name: options[name] for name in ("workload", "slo", "fleet", "admission") if options[name]}
    for name in ("policy", "n_run", "load", "router", "agents"):
        if options[name]:
            settings[name] = [part.strip() for part in options[name].split(",")]
    if options["seed"]:
        settings["seed"] = _seeds(options["seed"])
    return settings | {name: value for name, value in common_settings(options).items() if value}


def _seeds(text: str) -> list[int]:
    first, dots, last = text.partition("..")
    try:
        seeds = range(int(first), int(last) + 1) if dots else [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seed is {text!r}; allowed: such as 1,2,5 or 1..5") from None
    # As a list, a range of very many would take all memory before the cases are counted.
    if seeds[MAX_CASES:]:
        raise ConfigError(f"--seed is {text!r}; allowed: {MAX_CASES} of them at most")
    return list(seeds)


def _row_teller(grid: Grid, total: int, missing: int, errors: list[Row]) -> Callable[[Row, int], None]:
    """Returns a function that prints each result with its settings, and how long the rest may take."""
    axes = [axis for axis in AXES if len(getattr(grid, axis)) > 1]
    clock = SystemClock()
    start_s = clock.now_s()

    def tell(row: Row, left: int) -> None:
        if row.error:
            errors.append(row)
        chosen = "".join(f"{name} {row.axes[name]}, " for name in axes)
        came = f"failed: {row.error}" if row.error else f"goodput rate {row.figures['goodput_rate']:.4f}"
        left_s = (clock.now_s() - start_s) / max(1, missing - left) * left
        hint(f"{total - left} of {total}: {chosen}{came}" + (f"; about {duration_words(left_s)} left" if left else ""))

    return tell
