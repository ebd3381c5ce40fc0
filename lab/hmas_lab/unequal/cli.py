"""`hmas-lab unequal`: the product's routers on two real vLLM, one of which is slow."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from hmas.cli.output import duration_words, hint, json_option, say, say_json, table
from hmas.controller.core.errors import ConfigError
from hmas.loadgen.dataset import load_mixture
from hmas_lab.as_it_comes import cancel_on_sigterm
from hmas_lab.blocks import all_blocks, machine
from hmas_lab.cores import only_on
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.onvllm.cli import page_option
from hmas_lab.page import write_page
from hmas_lab.policies.settings import read_loads
from hmas_lab.questions import data_dir, read_questions
from hmas_lab.result_files import write_result
from hmas_lab.unequal.page import KIND, about, body, tables
from hmas_lab.unequal.settings import FAST, MAX_MODEL_LEN, MODEL, ROUTERS, SLOW, Settings, door_settings
from hmas_lab.unequal.study import Ground, Unequal
from hmas_lab.vllm_engine import WHOLE_PROMPTS, VllmServer, running_each

DEFAULT = Settings()
PATH = click.Path(path_type=Path)
BEFORE_S, BETWEEN_S = 780.0, 80.0
"""About how long engines, speeds and capacity take, and each run beside its arrivals: the product starts, the last answers come."""


@click.command()
@click.option("--vllm-python", type=PATH, default="build/vllm/bin/python", show_default=True, help="Of the environment with vLLM.")
@click.option("--model", type=PATH, default="build/smollm2", show_default=True, help="Its model's directory.")
@click.option("--blocks", type=click.IntRange(1, 20), default=DEFAULT.blocks, show_default=True, help="Repetitions of all runs.")
@click.option("--seconds", type=click.FloatRange(8, 600), default=DEFAULT.seconds, show_default=True, help="Length of a run's arrivals.")
@click.option("--loads", default=",".join(f"{load:g}" for load in DEFAULT.loads), show_default=True, help="Rates over capacity.")
@page_option
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/lab"), show_default=True, help="Results.")
@json_option
def unequal(*, vllm_python: Path, model: Path, loads: str, page: Path | None, out: Path, as_json: bool, **options: Any) -> None:
    """Send chats through `hmas up` to two real vLLM, one of them slow, under one router after another.

    The fast engine has a core by itself. The slow one may run for a third of the time, on a core that it shares with the product and the
    load generator. Speeds, targets and capacity are measured first. Nothing else may run on the machine meanwhile.

    \b
    Examples:
      hmas-lab unequal
      hmas-lab unequal --blocks 1 --seconds 10 --loads 0.5 --out /tmp/look
      hmas-lab unequal --page docs/results-unequal.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out, {KIND: body}, command='hmas-lab unequal'))}")
        return
    settings = Settings(**options, loads=read_loads(loads))
    runs = settings.blocks * len(settings.loads) * len(ROUTERS)
    hint(f"about {duration_words(BEFORE_S + runs * (settings.seconds + BETWEEN_S))}: {runs} runs")
    try:
        document = measure(settings, vllm_python, model, out)
    except asyncio.CancelledError:
        raise click.Abort from None
    hint(f"written to {out / KIND}.json")
    if as_json:
        say_json(document)
    else:
        say("\n\n".join([*about(document), *(f"{one.title}\n{table(one.head, one.rows)}" for one in tables(document))]))


def measure(settings: Settings, python: Path, model: Path, out: Path) -> dict[str, Any]:
    """Starts both engines, makes all blocks, writes the document after each, ends the engines.

    Raises:
        ConfigError: There is one core only.
        DemoBroken: An engine does not start.
        StudyError: It does not answer, or the product does not come up.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ConfigError("this process may run on one core; needed: two, one for the fast engine and one for everything else")
    door = door_settings(settings)
    folder = out / f"{KIND}-runs"
    questions = read_questions(data_dir(), max_prompt=door.max_prompt, max_output=door.max_output)
    load = DoorLoad(door, questions, load_mixture()[1])
    servers = {
        name: VllmServer(
            python=python,
            model=model,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=MAX_MODEL_LEN,
            cores=str(core),
            pinned=True,
            share=share,
            flags=WHOLE_PROMPTS,
        )
        for name, core, share in ((FAST, cores[0], 1.0), (SLOW, cores[1], settings.share))
    }

    def about_engines() -> dict[str, Any]:
        commands = {name: server.command(0, MODEL)[1:] for name, server in servers.items()}
        return {"machine": machine(), "prompts": "public data" if data_dir() else "datasets/", "engines": commands}

    async def measured() -> dict[str, Any]:
        cancel_on_sigterm()
        async with running_each(servers, folder, MODEL) as urls:
            texts = [one.text for one in questions]
            study = Unequal(settings, door, load, prompts=texts, urls=urls, model=MODEL, folder=folder, say=hint)
            return await all_blocks(study, settings.blocks, about_engines, on_ground=_ignore, on_block=kept)

    def kept(document: dict[str, Any]) -> None:
        write_result(out / f"{KIND}.json", document)

    with only_on({cores[1]}):
        return asyncio.run(measured())


def _ignore(_ground: Ground) -> None:
    """The study has said all of it."""
