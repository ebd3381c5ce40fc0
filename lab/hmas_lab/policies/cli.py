"""`hmas-lab policies`: what the order of the queue buys, live and in simulation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hmas.cli.output import exit_where_broken, hint, json_option, say, say_json, table
from hmas.planning.backends import on_cores
from hmas_lab.onvllm.cli import engine_options, page_option, run_contest
from hmas_lab.page import LIVE, SIMULATED
from hmas_lab.policies.live import contest
from hmas_lab.policies.live_figures import summary
from hmas_lab.policies.page import write_page
from hmas_lab.policies.plots import live_plot, simulated_plot
from hmas_lab.policies.settings import SimulatedSettings, live_settings, read_loads, read_policies, read_slices
from hmas_lab.policies.simulate import SimulatedStudy
from hmas_lab.policies.tables import live_table, live_verdict, simulated_tables, simulated_verdicts, wins_table
from hmas_lab.result_files import write_result
from hmas_lab.tables import Table

DEFAULT = SimulatedSettings(policies=())


@click.command()
@engine_options(seconds=32.0, load=1.0, when="Live: ")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Live: texts, tenants and order of the runs.")
@click.option("--simulate", is_flag=True, help="In virtual time, slice by slice, instead of live.")
@click.option("--slices", default=",".join(DEFAULT.slices), show_default=True, help="Simulation: which.")
@click.option("--loads", default=",".join(f"{x:g}" for x in DEFAULT.loads), show_default=True, help="Simulation: rates over capacity.")
@click.option("--seeds", type=click.IntRange(2, 100), default=DEFAULT.seeds, show_default=True, help="Simulation: workloads a slice.")
@click.option("--duration", type=click.FloatRange(20, 86_400), default=DEFAULT.duration_s, show_default=True, help="Simulation: seconds.")
@click.option("--fleet", default=DEFAULT.fleet, show_default=True, help="Simulation: engines, as `hmas simulate` takes them.")
@click.option("--workers", type=click.IntRange(1, 256), default=2, show_default=True, help="Simulation: processes.")
@page_option
@click.option("--policies", default="", help="Only these, with commas between; fcfs is always there. Default: the whole pool.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/policies"), show_default=True, help="Results.")
@json_option
@click.pass_context
def policies(ctx: click.Context, /, *, page: Path | None, simulate: bool, out: Path, as_json: bool, **options: Any) -> None:
    """Compare every policy of the pool with first come first served under the best window and shedding.

    Live, each run has one static policy on a real vLLM; window and treatment of late requests are the same for all, so what differs is the
    order of the queue. Blocks hold all runs, on the same arrivals, in an order drawn for each; runs under which the clock stood still for
    0.3 s are made again, and left out where that does not help. Nothing else should run on the machine meanwhile.

    Exit code 1 when a request was lost or anything else broke.

    \b
    Examples:
      hmas-lab policies --vllm-python build/vllm/bin/python --model build/tiny-model --blocks 5
      hmas-lab policies --simulate
      hmas-lab policies --page docs/policies-results.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    live = options["vllm_python"] is not None or options["model"] is not None
    if live + simulate + (page is not None) != 1:
        raise click.UsageError("give one of: --vllm-python with --model, --simulate, --page")
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out))}")
        return
    chosen = read_policies(options["policies"])
    document = _simulated(chosen, out, options) if simulate else _live(chosen, out, options)
    if as_json:
        say_json(document)
    else:
        say(simulated_text(document) if simulate else live_text(document))
    trouble = [f"{p['slice']}: {name} failed: {e}" for p in document["summary"] for name, e in p["failed"].items()] if simulate else []
    exit_where_broken(ctx, trouble or document.get("broken", []))


def live_text(document: Mapping[str, Any]) -> str:
    """The live comparison for a terminal."""
    return f"{_text(live_table(document))}\n\nIn words: {live_verdict(document)}"


def simulated_text(document: Mapping[str, Any]) -> str:
    """The simulated comparison for a terminal."""
    parts = [*map(_text, simulated_tables(document)), _text(wins_table(document)), "\n".join(simulated_verdicts(document))]
    return "\n\n".join(parts)


def _text(found: Table) -> str:
    return f"{found.title}\n{table(found.head, found.rows)}"


def _live(chosen: tuple[str, ...], out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    if options["vllm_python"] is None or options["model"] is None:
        raise click.UsageError("--vllm-python and --model go together")
    settings = live_settings(chosen, seconds=options["seconds"], blocks=options["blocks"], load=options["load"], seed=options["seed"])

    def keep(document: dict[str, Any]) -> None:
        document["summary"] = summary(document["blocks"], settings.policies)
        write_result(out / f"{LIVE}.json", document)
        live_plot(out / f"{LIVE}.svg", document)

    document = run_contest(contest(settings), options, out / "live", on_block=keep)
    keep(document)
    hint(f"written to {out / LIVE}.json and .svg")
    return document


def _simulated(chosen: tuple[str, ...], out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    settings = SimulatedSettings(
        policies=chosen,
        slices=read_slices(options["slices"]),
        fleet=options["fleet"],
        loads=read_loads(options["loads"]),
        seeds=options["seeds"],
        duration_s=options["duration"],
    )
    document = SimulatedStudy(settings, on_cores(options["workers"]), hint).run()
    out.mkdir(parents=True, exist_ok=True)
    write_result(out / f"{SIMULATED}.json", document)
    simulated_plot(out / f"{SIMULATED}.svg", document)
    hint(f"written to {out / SIMULATED}.json and .svg")
    return document
