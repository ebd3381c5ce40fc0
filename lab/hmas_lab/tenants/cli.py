"""`hmas-lab tenants`: whether a tenant that floods takes another's share."""

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.cli.output import EXIT_FAILED, complain, hint, json_option, say, say_json, table
from hmas.loadgen.dataset import load_mixture
from hmas_lab.frontdoor.cli import engines_of
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.runs import Runs
from hmas_lab.frontdoor.settings import FULL, VLLM, DoorSettings
from hmas_lab.questions import data_dir, read_questions
from hmas_lab.result_files import write_result
from hmas_lab.tenants.study import FLOODS, STEADY, FloodSettings, flood_study

SECONDS, VLLM_SECONDS = 60.0, 90.0
DRAIN_S, VLLM_DRAIN_S = 30.0, 110.0
"""How long answers are waited for after the last arrival. Most of the flood is never served; on a real vLLM a long answer takes 100 s."""


@click.command()
@click.option("--vllm-python", type=click.Path(path_type=Path), help="Measure a real vLLM: interpreter of the environment that holds it.")
@click.option("--model", type=click.Path(path_type=Path), help="Model directory for it (scripts/build_smollm2.py).")
@click.option("--seconds", type=click.FloatRange(4, 600), help="Length of the arrivals of a run; default: 60, 90 on a real vLLM.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/bench"), show_default=True, help="Results.")
@json_option
@click.pass_context
def tenants(
    ctx: click.Context, /, *, vllm_python: Path | None, model: Path | None, seconds: float | None, out: Path, as_json: bool
) -> None:
    """Send two tenants' requests through the product as it comes; one of them floods with ten times its share.

    The other asks for 60 % of its share, first alone, then beside the flood, with weights of 4:1 and 1:1. The flood comes with the first
    request, or half a minute later. The other's goodput beside the flood must be at least 0.97 of that alone. Rates follow from the
    capacity, which is measured first.

    Exit code 1 when it is less.

    \b
    Examples:
      hmas-lab tenants
      hmas-lab tenants --vllm-python build/vllm/bin/python --model build/smollm2
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if (vllm_python is None) != (model is None):
        raise click.UsageError("give --vllm-python and --model together")
    real = vllm_python is not None
    door = msgspec.structs.replace(VLLM if real else FULL, drain_s=VLLM_DRAIN_S if real else DRAIN_S)
    settings = FloodSettings(seconds=seconds or (VLLM_SECONDS if real else SECONDS))
    document = asyncio.run(_measure(door, settings, {"vllm_python": vllm_python, "model": model}, out))
    path = out / f"tenants{'-vllm' if real else ''}.json"
    write_result(path, document)
    if as_json:
        say_json(document)
    else:
        _print(document)
    hint(f"written to {path}")
    missed = [f"{_name(row)}: {row['over_alone']:.2f} of alone" for row in document["rows"] if not row["met"]]
    if missed:
        complain(f"missed: {'; '.join(missed)}")
        ctx.exit(EXIT_FAILED)


async def _measure(door: DoorSettings, settings: FloodSettings, options: dict[str, Any], out: Path) -> dict[str, Any]:
    load = DoorLoad(door, read_questions(data_dir(), max_prompt=door.max_prompt, max_output=door.max_output), load_mixture()[1])
    folder = out / f"tenants-{door.engine}-runs"
    folder.mkdir(parents=True, exist_ok=True)
    async with engines_of(door, options, folder) as engines:
        return await flood_study(settings, load, Runs(door, load, engines, folder, hint), hint)


def _print(document: dict[str, Any]) -> None:
    say(f"capacity: {document['capacity_rps']:.2f} good requests/s\n")
    head = (f"weights {STEADY}:{FLOODS}, flood", "alone", "beside the flood", "TTFT p95 s alone", "beside", "the flood itself")
    rows = [
        (
            _name(row),
            *(f"{row[kind]['good']} of {row[kind]['sent']}" for kind in ("alone", "beside")),
            *(f"{row[kind]['ttft_p95_ms'] / 1000.0:.2f}" for kind in ("alone", "beside")),
            f"{row['flood']['good']} of {row['flood']['sent']}",
        )
        for row in document["rows"]
    ]
    say(table(head, rows))
    for row in document["rows"]:
        say(f"\n`hmas status` in the flood, weights {_name(row)}\n{row['status']}")


def _name(row: dict[str, Any]) -> str:
    begins = f"after {row['lead_s']:g} s" if row["lead_s"] else "at once"
    return f"{row['weight']:g}:1, {begins}"
