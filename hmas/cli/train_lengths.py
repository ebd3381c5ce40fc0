"""`hmas train lengths`: trains the model that predicts output lengths from prompts, on outputs of language models."""

import shlex
import tempfile
from pathlib import Path

import click
import msgspec

from hmas.agents.model_store.card import ModelCard, file_sha256, write_card
from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.lengths.base import FILE, load
from hmas.agents.perception.readers import KIND, LENGTHS_ONLY
from hmas.agents.perception.training.lengths.corpus import NOT_PERMISSIVE, gather
from hmas.agents.perception.training.lengths.fitting import Plan, train, write
from hmas.cli.admin import config_option, read_config
from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.controller.config.derived import models_dir
from hmas.controller.runtime.clock import SystemClock

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("lengths")
@click.option("--lengths", type=_FILE, required=True, help="Table in the format of multi_model_output_lengths.csv.gz.")
@click.option("--prompts", type=_FILE, required=True, help="Its prompts, in the format of multi_model_prompts.jsonl.gz.")
@click.option("--typed", type=_FILE, help="Typed prompts with outputs, in the format of typed_prompts.jsonl.gz.")
@click.option("--all-licences", is_flag=True, help=f"Also learn from {', '.join(NOT_PERMISSIVE)}: the model is then for your own use only.")
@click.option("--widening", type=click.FloatRange(0.0, 4.0), default=0.0, help="Skip the run that measures it on held-out prompts.")
@click.option("--trees", type=click.IntRange(1, 5000), default=Plan().trees, show_default=True, help="Trees that are boosted.")
@click.option("--seed", type=click.IntRange(0), default=Plan().seed, show_default=True, help="The same seed gives the same model.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write; default: a new version in the store.")
@config_option
@json_option
def train_lengths(
    *,
    lengths: Path,
    prompts: Path,
    typed: Path | None,
    all_licences: bool,
    widening: float,
    trees: int,
    seed: int,
    out: Path | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Train the length model that perception begins with; its error is corrected live. Takes about a minute.

    \b
    Example:
      hmas train lengths --lengths multi_model_output_lengths.csv.gz --prompts multi_model_prompts.jsonl.gz --typed typed_prompts.jsonl.gz
    """  # noqa: D301 - click reads \b as "do not rewrap"
    corpus = gather(lengths, prompts, typed, all_licences=all_licences)
    hint(f"{len(corpus.examples)} answers to {len(corpus.prompts)} prompts")
    document = train(corpus, Plan(trees=trees, seed=seed, widening=widening), hint)
    given = [path for path in (lengths, prompts, typed) if path is not None]
    words = ["hmas", "train", "lengths", "--lengths", lengths.name, "--prompts", prompts.name]
    words += [*(["--typed", typed.name] if typed is not None else []), *(["--all-licences"] if all_licences else [])]
    words += ["--widening", str(widening)] if widening else []
    card = ModelCard(
        kind=KIND,
        format=LENGTHS_ONLY,
        created_s=SystemClock().now_s(),
        data_sha256={path.name: file_sha256(path) for path in given},
        command=shlex.join([*words, "--trees", str(trees), "--seed", str(seed)]),
        licence="CC BY-NC 4.0, by its data" if all_licences else "Apache-2.0; trained on permissively licensed data",
        metrics={
            "answers": len(corpus.examples),
            "prompts": len(corpus.prompts),
            "widening": document["widening"],
            "longest": document["longest"],
        },
        details={
            "left_out": [] if all_licences else list(NOT_PERMISSIVE),
            "known_models": sorted(document["offsets"]),
            "ranges": dict(zip(document["inputs"], document["ranges"], strict=True)),
        },
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        card = _written(document, out, card)
        hint(f"written to {out}; hmas eval lengths --net {out} measures it")
    else:
        store = ModelStore(models_dir(read_config(config_file)))
        with tempfile.TemporaryDirectory() as folder:
            _written(document, Path(folder), card)
            version = store.add(KIND, Path(folder), card)
        card = msgspec.structs.replace(card, version=version)
        hint(f"stored as {version}; hmas models use {KIND} {version} puts it in force, beside the shipped reader")
    if as_json:
        say_json(msgspec.to_builtins(card))
    else:
        say(table(["figure", "value"], sorted(card.metrics.items())))


def _written(document: dict[str, object], folder: Path, card: ModelCard) -> ModelCard:
    write(document, folder / FILE)
    load(folder)
    return write_card(folder, card)
