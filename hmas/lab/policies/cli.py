"""`hmas lab policies`: what the order of the queue buys, live and in simulation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hmas.cli.output import EXIT_FAILED, complain, duration_words, hint, json_option, say, say_json, table
from hmas.demo.field_cli import default_trace
from hmas.demo.vllm_engine import VllmServer
from hmas.lab.page import LIVE, SIMULATED
from hmas.lab.policies.live import STAGES, PolicyRuns
from hmas.lab.policies.live_figures import summary
from hmas.lab.policies.page import write_page
from hmas.lab.policies.plots import live_plot, simulated_plot
from hmas.lab.policies.settings import SimulatedSettings, live_settings, read_loads, read_policies, read_slices
from hmas.lab.policies.simulate import SimulatedStudy
from hmas.lab.policies.tables import live_table, live_verdict, simulated_tables, simulated_verdicts, wins_table
from hmas.lab.result_files import write_result
from hmas.lab.shared_vllm import compare_on_vllm, seconds_of
from hmas.lab.studies.backends import on_cores
from hmas.lab.tables import Table
from hmas.lab.traces import read_trace

DEFAULT = SimulatedSettings(policies=())
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--vllm-python", type=click.Path(path_type=Path), help="Live: interpreter of the environment that holds vLLM.")
@click.option("--model", type=click.Path(path_type=Path), help="Live: model directory (scripts/build_tiny_model.py).")
@click.option("--trace", type=FILE, help="Live: trace with times and lengths; default: Azure's under HMAS_DATA_DIR, else drawn.")
@click.option("--seconds", type=click.FloatRange(4, 600), default=32.0, show_default=True, help="Live: scored seconds of one run.")
@click.option("--blocks", type=click.IntRange(1, 20), default=5, show_default=True, help="Live: repetitions of all runs.")
@click.option("--load", type=click.FloatRange(0.1, 2.0), default=1.0, show_default=True, help="Live: mean rate over measured capacity.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Live: texts, tenants and order of the runs.")
@click.option("--simulate", is_flag=True, help="In virtual time, slice by slice, instead of live.")
@click.option("--slices", default=",".join(DEFAULT.slices), show_default=True, help="Simulation: which.")
@click.option("--loads", default=",".join(f"{x:g}" for x in DEFAULT.loads), show_default=True, help="Simulation: rates over capacity.")
@click.option("--seeds", type=click.IntRange(2, 100), default=DEFAULT.seeds, show_default=True, help="Simulation: workloads a slice.")
@click.option("--duration", type=click.FloatRange(20, 86_400), default=DEFAULT.duration_s, show_default=True, help="Simulation: seconds.")
@click.option("--fleet", default=DEFAULT.fleet, show_default=True, help="Simulation: engines, as `hmas simulate` takes them.")
@click.option("--workers", type=click.IntRange(1, 256), default=2, show_default=True, help="Simulation: processes.")
@click.option("--page", type=FILE, help="Run nothing: write what lies in --out into this page, between its markers.")
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
      hmas lab policies --vllm-python build/vllm/bin/python --model build/tiny-model --blocks 5
      hmas lab policies --simulate
      hmas lab policies --page docs/policies-results.md
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
    for text in trouble or document.get("broken", []):
        complain(f"broken: {text}")
    if trouble or document.get("broken"):
        ctx.exit(EXIT_FAILED)


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
    rows = read_trace(options["trace"]) if options["trace"] else default_trace()
    phases = seconds_of(settings.field, STAGES, treatments=1, runs=len(chosen) + 1)
    hint(f"about {duration_words(sum(length for _, length in phases))}: {len(chosen) + 1} runs a block")
    out.mkdir(parents=True, exist_ok=True)

    def keep(document: dict[str, Any]) -> None:
        document["summary"] = summary(document["blocks"], settings.policies)
        write_result(out / f"{LIVE}.json", document)
        live_plot(out / f"{LIVE}.svg", document)

    server = VllmServer(python=options["vllm_python"], model=options["model"])
    document = compare_on_vllm(
        lambda runs, load, reporter: PolicyRuns(settings, runs, load, say=reporter.say, stage=reporter.phase),
        settings.field,
        server,
        rows,
        out / "live",
        phases=phases,
        on_block=keep,
    )
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
