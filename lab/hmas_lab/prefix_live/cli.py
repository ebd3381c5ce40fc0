"""`hmas-lab prefix-live`: prefix caches of two real vLLM behind the product's routers and those of other projects."""

import asyncio
from pathlib import Path
from typing import Any

import click

from hmas.cli.output import hint, json_option, say, say_json, table
from hmas_lab.page import write_page
from hmas_lab.prefix_live.fronts import FRONTS
from hmas_lab.prefix_live.page import KIND, body, tables
from hmas_lab.prefix_live.study import QUESTION_TOKENS, Settings, Site, engines_with_caches, run
from hmas_lab.questions import data_dir, read_questions
from hmas_lab.result_files import write_result
from hmas_lab.simulated_rows import read_names

DEFAULT = Settings()
PATH = click.Path(exists=True, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
ANSWER_MOST = 1 << 20


@click.command("prefix-live")
@click.option("--vllm-python", type=PATH, default="build/vllm/bin/python", show_default=True, help="Of the environment with vLLM.")
@click.option("--model", type=PATH, default="build/smollm2", show_default=True, help="Its model's directory.")
@click.option("--peers", type=click.Path(path_type=Path), default="build/peers", show_default=True, help="What `make setup-peers` made.")
@click.option("--users", type=click.IntRange(1, 64), default=DEFAULT.users, show_default=True, help="At the same time.")
@click.option("--seconds", type=click.FloatRange(5, 600), default=DEFAULT.seconds, show_default=True, help="Length of a run.")
@click.option("--rounds", type=click.IntRange(1, 20), default=DEFAULT.rounds, show_default=True, help="Runs of each front.")
@click.option("--fronts", default="", help="Only these, with commas between; the names are those of the page. Default: all.")
@click.option("--page", type=FILE, help="Run nothing: write what lies in --out into this page, between its markers.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/lab"), show_default=True, help="Results.")
@json_option
def prefix_live(
    *, vllm_python: Path, model: Path, peers: Path, fronts: str, page: Path | None, out: Path, as_json: bool, **options: Any
) -> None:
    """Send chats about documents to two real vLLM with prefix caches, each on a core, through every front in turn.

    A front is the product without agents with one of its routers, or the router of another project. Each run has system prompts of its own,
    so that nothing of an earlier run is cached. Nothing else may run on the machine meanwhile.

    \b
    Examples:
      hmas-lab prefix-live
      hmas-lab prefix-live --rounds 1 --seconds 20 --out /tmp/look
      hmas-lab prefix-live --page docs/results-prefix.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out, {KIND: body}, command='hmas-lab prefix-live'))}")
        return
    settings = Settings(**options, fronts=read_names("--fronts", fronts, tuple(FRONTS)))
    texts = [question.text for question in read_questions(data_dir(), max_prompt=QUESTION_TOKENS, max_output=ANSWER_MOST)]

    others = peers.absolute()

    async def measured() -> dict[str, Any]:
        async with engines_with_caches(vllm_python, model, out / f"{KIND}-runs") as engines:
            return await run(settings, Site(engines, others, out / f"{KIND}-runs"), texts, hint)

    document = asyncio.run(measured())
    write_result(out / f"{KIND}.json", document)
    hint(f"written to {out / KIND}.json" + (f"; without {', '.join(document['missing'])}" if document["missing"] else ""))
    if as_json:
        say_json(document)
    else:
        say("\n\n".join(f"{one.title}\n{table(one.head, one.rows)}" for one in tables(document)))
