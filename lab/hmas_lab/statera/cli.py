"""`hmas-lab statera`: statera's control of its own, without the rest of H-MAS."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.cli.output import hint, json_option, say, say_json
from hmas_lab.page import write_section
from hmas_lab.result_files import read_result, write_result
from hmas_lab.statera import coverage, fence, live, responses
from hmas_lab.statera.plots import draw
from hmas_lab.statera.tables import tables
from hmas_lab.tables import markdown

PARTS = ("coverage", "fence", "responses", "grid")
NAME = "statera"
LIVE = "live"


@click.command()
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Only this; may be given more than once. Default: all.")
@click.option("--seeds", type=click.IntRange(1, 100), default=5, show_default=True, help="Workloads of each kind.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Folder with prompts/ for real lengths; default: HMAS_DATA_DIR, else drawn ones."
)
@click.option(
    "--vllm-python",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Python of an environment with vLLM: the same shapes on a real engine, and nothing else. A quarter of an hour.",
)
@click.option("--model", type=click.Path(file_okay=False, path_type=Path), help="Directory of the model that it serves.")
@click.option("--shape", "shapes", type=click.Choice(list(responses.SHAPES)), multiple=True, help="On the real engine: only this one.")
@click.option("--repeats", type=click.IntRange(1, 20), default=1, show_default=True, help="On the real engine: runs of each shape.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/lab"), show_default=True, help="Results.")
@click.option(
    "--page", type=click.Path(dir_okay=False, path_type=Path), help="Only write this page anew from the results; plots beside it."
)
@json_option
def statera(
    *,
    parts: tuple[str, ...],
    seeds: int,
    data: Path | None,
    vllm_python: Path | None,
    model: Path | None,
    shapes: tuple[str, ...],
    repeats: int,
    out: Path,
    page: Path | None,
    as_json: bool,
) -> None:
    """Try statera alone: how its bounds cover, how its window moves, in simulation and on a real vLLM.

    What is not asked for stays as an earlier run left it.

    \b
    Examples:
      hmas-lab statera
      hmas-lab statera --part grid --seeds 2
      hmas-lab statera --vllm-python build/vllm/bin/python --model build/tiny-model
      hmas-lab statera --page docs/statera.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    path = out / f"{NAME}.json"
    if page is not None:
        _write_page(page, read_result(path, command="hmas-lab statera"))
        return
    if (vllm_python is None) != (model is None):
        raise click.UsageError("give --vllm-python and --model together")
    document: dict[str, Any] = dict(read_result(path, command="hmas-lab statera")) if path.is_file() else {"version": 1}
    if vllm_python is not None and model is not None:
        folder = out / "statera-live"
        folder.mkdir(parents=True, exist_ok=True)
        settings = live.LiveSettings(shapes=shapes or tuple(responses.SHAPES), repeats=repeats)
        document[LIVE] = asyncio.run(live.study(settings, vllm_python, model, folder, hint))
    else:
        document |= _study(parts or PARTS, seeds, data)
    document["summary"] = {"parts": [part for part in (*PARTS, LIVE) if part in document]}
    write_result(path, document)
    draw(document, out)
    hint(f"written to {path}")
    if as_json:
        say_json(document)
    else:
        say("\n\n".join(markdown(table) for table in tables(document)))


def _study(parts: tuple[str, ...], seeds: int, data: Path | None) -> dict[str, Any]:
    chosen = tuple(range(1, seeds + 1))
    settings = responses.ResponseSettings(seeds=chosen, grid_seeds=chosen[:2])
    found: dict[str, Any] = {"settings": msgspec.to_builtins(settings)}
    if "coverage" in parts:
        named = os.environ.get("HMAS_DATA_DIR", "")
        found["coverage"] = coverage.study(data or (Path(named) if named else None), chosen)
        hint("coverage: done")
    if "fence" in parts:
        found["fence"] = fence.study("1xa100-qwen3-8b", chosen)
        hint("fence: done")
    if "responses" in parts:
        found["responses"] = responses.study(settings, hint)
    if "grid" in parts:
        found["grid"] = responses.grid(settings, hint)
    return found


def _write_page(page: Path, document: Mapping[str, Any]) -> None:
    write_section(page, NAME, "\n\n".join(markdown(table) for table in tables(document)))
    draw(document, page.parent)
    hint(f"{page}: written")
