"""`hmas lab agents`: what perception and prediction are worth to the scheduler."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from controller.core.errors import ConfigError
from hmas.cli.output import EXIT_FAILED, complain, hint, json_option, say, say_json, table
from hmas.lab.agents.page import SIMULATED, write_page
from hmas.lab.agents.settings import AblationSettings, read_beliefs, read_ways
from hmas.lab.agents.simulate import SimulatedAblation
from hmas.lab.agents.tables import short_table, simulated_tables
from hmas.lab.policies.settings import read_loads
from hmas.lab.studies.backends import on_cores

DEFAULT = AblationSettings()
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option("--simulate", is_flag=True, help="In virtual time.")
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
@click.option("--workers", type=click.IntRange(1, 256), default=2, show_default=True, help="Simulation: processes.")
@click.option("--page", type=FILE, help="Run nothing: write what lies in --out into this page, between its markers.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/agents"), show_default=True, help="Results.")
@json_option
@click.pass_context
def agents(ctx: click.Context, /, *, page: Path | None, simulate: bool, out: Path, as_json: bool, **options: Any) -> None:
    """Compare what the scheduler is told: nothing, rules and statistics, the trained models, the truth.

    The requests are real prompts that no shipped model was trained on, with the lengths of real models' answers. All beliefs meet the same
    requests; what counts as good follows from the true task type, whatever was believed.

    Exit code 1 when a run broke.

    \b
    Examples:
      hmas lab agents --simulate --data DIR
      hmas lab agents --simulate --ways hmas --beliefs rules,trained,oracle --seeds 10
      hmas lab agents --page docs/agents-ablation.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if simulate + (page is not None) != 1:
        raise click.UsageError("give one of: --simulate, --page")
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out))}")
        return
    document = _simulated(out, options)
    if as_json:
        say_json(document)
    else:
        say("\n\n".join(f"{one.title}\n{table(one.head, one.rows)}" for one in [*simulated_tables(document), short_table(document)]))
    for text in document["broken"]:
        complain(f"broken: {text}")
    if document["broken"]:
        ctx.exit(EXIT_FAILED)


def _simulated(out: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    if options["data"] is None:
        raise click.UsageError("the prompts are public data that this project does not carry: give --data DIR or set HMAS_DATA_DIR")
    settings = AblationSettings(
        beliefs=read_beliefs(options["beliefs"]),
        ways=read_ways(options["ways"]),
        fleet=options["fleet"],
        loads=read_loads(options["loads"]),
        seeds=options["seeds"],
        duration_s=options["duration"],
        answer_s=options["answer_ms"] / 1000.0,
    )
    document = SimulatedAblation(options["data"], settings, on_cores(options["workers"]), hint).run()
    _write(out / f"{SIMULATED}.json", document)
    hint(f"written to {out / SIMULATED}.json")
    return document


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """Whole or not at all: a long run that is broken off must not leave half a file."""
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; choose another --out") from error
