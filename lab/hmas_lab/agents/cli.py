"""`hmas-lab agents`: what perception and prediction are worth to the scheduler."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hmas.cli.output import duration_words, exit_where_broken, hint, json_option, say, say_json, table
from hmas.planning.backends import on_cores
from hmas_lab.agents.asked import read_pool, write_without
from hmas_lab.agents.held_out import held_out
from hmas_lab.agents.live_vllm import ablate_on_vllm, seconds_of
from hmas_lab.agents.page import write_page, write_paper_row
from hmas_lab.agents.rows import KeptRows
from hmas_lab.agents.settings import AblationSettings, read_beliefs, read_ways
from hmas_lab.agents.simulate import SimulatedAblation
from hmas_lab.agents.tables import live_table, masking_table, paper_table, short_table, simulated_tables
from hmas_lab.demo_vllm.settings import FieldSettings
from hmas_lab.onvllm.cli import engine_options, page_option
from hmas_lab.page import LIVE, SIMULATED
from hmas_lab.policies.settings import read_loads
from hmas_lab.result_files import write_result
from hmas_lab.vllm_engine import VllmServer

DEFAULT = AblationSettings()
PERIOD_S = 16.0
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@engine_options(seconds=32.0, load=1.0, trace=False, when="Live: ")
@click.option("--length-scale", type=click.FloatRange(0.01, 1), default=0.25, show_default=True, help="Live: answers over their lengths.")
@click.option("--seed", type=click.IntRange(0, 1_000_000), default=1, show_default=True, help="Live: prompts and order of the runs.")
@click.option("--simulate", is_flag=True, help="In virtual time, instead of live.")
@click.option("--data", type=FOLDER, envvar="HMAS_DATA_DIR", help="Folder with prompts/; default: HMAS_DATA_DIR.")
@click.option("--beliefs", default="", help="Simulation: only these, with commas between. Default: all.")
@click.option("--ways", default="", help="Simulation: only these ways to schedule. Default: all.")
@click.option("--loads", default=",".join(f"{x:g}" for x in DEFAULT.loads), show_default=True, help="Simulation: rates over capacity.")
@click.option("--seeds", type=click.IntRange(2, 100), default=DEFAULT.seeds, show_default=True, help="Simulation: workloads a load.")
@click.option("--duration", type=click.FloatRange(20, 86_400), default=DEFAULT.duration_s, show_default=True, help="Simulation: seconds.")
@click.option("--fleet", default=DEFAULT.fleet, show_default=True, help="Simulation: engines, as `hmas simulate` takes them.")
@click.option(
    "--answer-ms", type=click.FloatRange(0, 60_000), default=1000.0 * DEFAULT.answer_s, show_default=True, help="The agents' delay."
)
@click.option("--resume", is_flag=True, help="Simulation: take up a run that was broken off; what it finished lies in --out.")
@click.option("--net", type=FOLDER, help="Simulation: length model in place of the shipped one (see --training-data).")
@click.option("--training-data", type=click.Path(file_okay=False, path_type=Path), help="Run nothing: write what a model may see to here.")
@click.option("--workers", type=click.IntRange(1, 256), default=2, show_default=True, help="Simulation: processes.")
@page_option
@click.option("--paper-row", is_flag=True, help="With --page: only Table 2's last row and latency masking, into their own section.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/agents"), show_default=True, help="Results.")
@json_option
@click.pass_context
def agents(ctx: click.Context, /, *, page: Path | None, paper_row: bool, simulate: bool, out: Path, as_json: bool, **options: Any) -> None:
    """Compare what the scheduler is told: nothing, rules and statistics, the trained models, the truth.

    The requests are real prompts that the shipped tagger was not trained on, with the lengths of real models' answers. All beliefs meet the
    same requests; what counts as good follows from the true task type, whatever was believed. The shipped length model has seen them: one
    that has not is trained on what --training-data writes, and given by --net.

    Exit code 1 when a run broke.

    \b
    Examples:
      hmas-lab agents --simulate --data DIR
      hmas-lab agents --vllm-python build/vllm/bin/python --model build/tiny-model --blocks 5
      hmas-lab agents --simulate --ways hmas --beliefs rules,trained,oracle --seeds 10
      hmas-lab agents --training-data build/agents/data
      hmas-lab agents --page docs/agents-ablation.md
      hmas-lab agents --simulate --ways hmas,paper --beliefs "fixed rules,rules,trained" --loads 0.7,0.85,1,1.2 --out build/agents/row
      hmas-lab agents --page docs/agents-ablation.md --paper-row --out build/agents/row
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if options["training_data"] is not None:
        _write_training_data(options["data"], options["training_data"])
        return
    live = options["vllm_python"] is not None or options["model"] is not None
    if live + simulate + (page is not None) != 1:
        raise click.UsageError("give one of: --vllm-python with --model, --simulate, --page")
    if page is not None:
        written = write_paper_row(page, out) if paper_row else write_page(page, out)
        say(f"{page}: written from {out}: {', '.join(written)}")
        return
    if paper_row:
        raise click.UsageError("--paper-row says what to write into a page; give --page with it")
    _need_data(options["data"])
    document = _simulated(out, options) if simulate else _live(out, options)
    further = (short_table, paper_table, masking_table)
    tables = [*simulated_tables(document), *(make(document) for make in further)] if simulate else [live_table(document)]
    if as_json:
        say_json(document)
    else:
        say("\n\n".join(f"{one.title}\n{table(one.head, one.rows)}" for one in tables))
    exit_where_broken(ctx, document["broken"])


def _need_data(data: Path | None) -> None:
    if data is None:
        raise click.UsageError("the prompts are public data that this project does not carry: give --data DIR or set HMAS_DATA_DIR")


def _write_training_data(data: Path | None, folder: Path) -> None:
    _need_data(data)
    assert data is not None
    left_out = write_without(data, folder, held_out(data))
    hint(
        f"{left_out} prompts are left out; train with: hmas-lab training-data --part answers --data {folder} --out {folder}, "
        f"hmas train lengths --data {folder}/answers.jsonl.gz --out NET, then run with --net NET"
    )


def _simulated(out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    settings = AblationSettings(
        beliefs=read_beliefs(options["beliefs"]),
        ways=read_ways(options["ways"]),
        fleet=options["fleet"],
        loads=read_loads(options["loads"]),
        seeds=options["seeds"],
        duration_s=options["duration"],
        answer_s=options["answer_ms"] / 1000.0,
        net=str(options["net"] or ""),
    )
    kept = KeptRows(out / "rows.jsonl", resume=options["resume"])
    document = SimulatedAblation(options["data"], settings, on_cores(options["workers"]), hint, kept).run()
    write_result(out / f"{SIMULATED}.json", document)
    hint(f"written to {out / SIMULATED}.json")
    return document


def _live(out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    if options["vllm_python"] is None or options["model"] is None:
        raise click.UsageError("--vllm-python and --model go together")
    periods = max(1, round(options["seconds"] / PERIOD_S))
    settings = FieldSettings(
        seed=options["seed"],
        load=options["load"],
        period_s=options["seconds"] / periods,
        periods=periods,
        blocks=options["blocks"],
        length_scale=options["length_scale"],
    )
    hint(f"about {duration_words(sum(length for _, length in seconds_of(settings)))}")
    pool = read_pool(options["data"], held_out(options["data"]))

    def keep(document: dict[str, Any]) -> None:
        write_result(out / f"{LIVE}.json", document)

    server = VllmServer(python=options["vllm_python"], model=options["model"])
    out.mkdir(parents=True, exist_ok=True)
    document = ablate_on_vllm(settings, server, pool, out / "live", keep)
    keep(document)
    hint(f"written to {out / LIVE}.json")
    return document
