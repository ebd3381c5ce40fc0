"""`hmas eval perception`: evaluates task types on labelled prompts, and output lengths on measured ones."""

from pathlib import Path
from typing import Any

import click

from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.readers import Opened, ReaderSource, open_folder
from hmas.agents.perception.training.data import is_typed
from hmas.agents.perception.training.evaluation import evaluate_files
from hmas.cli.eval_lengths import is_lengths_file, judge, read_rows, report
from hmas.cli.output import json_option, say, say_json, table
from hmas.controller.config.schema import AgentsConfig, Config

_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)
NAMES = ("shipped", "rules")
WORST = 12
"""Confusions that the text report names."""


@click.command()
@click.option("--data", type=_FILES, multiple=True, required=True, help="File like typed_prompts or multi_model_*; more may follow.")
@click.argument("more", type=_FILES, nargs=-1)
@click.option(
    "--model",
    default="shipped",
    show_default=True,
    help="shipped, rules, or a folder that `hmas train perception` wrote.",
)
@click.option("--features-only", is_flag=True, help="Judge it without the prompts' text, as where prompts may not leave the gateway.")
@click.option("--shapes/--no-shapes", default=True, help="Whether to judge it on every shape of request too, on 1,000 of the prompts.")
@click.option("--held-out", is_flag=True, help="Only the prompts that training on these files leaves out for judging (one in five).")
@json_option
def perception(
    *, data: tuple[Path, ...], more: tuple[Path, ...], model: str, features_only: bool, shapes: bool, held_out: bool, as_json: bool
) -> None:
    """Evaluate a perception model on files that it has not seen.

    On labelled prompts (JSON lines with prompt and task_type) it evaluates task types: accuracy, F1, calibration, confusion, by class and
    by source, and in every shape of request: as a completion, with system prompts, histories, tools. On a pair of files with prompts and
    the output lengths of several models (multi_model_prompts and multi_model_output_lengths) it evaluates lengths. You may give both.

    \b
    Examples:
      hmas eval perception --data typed_prompts.jsonl.gz
      hmas eval perception --data typed_prompts.jsonl.gz --held-out
      hmas eval perception --data typed.jsonl --model build/perception --json
      hmas eval perception --data multi_model_prompts.jsonl.gz multi_model_output_lengths.csv.gz
    """  # noqa: D301 - click reads \b as "do not rewrap"
    files = (*data, *more)
    typed = [path for path in files if not is_lengths_file(path) and is_typed(path)]
    lengths = [path for path in files if path not in typed]
    result: dict[str, Any] = {}
    if typed:
        opened = _opened(model)
        result["task"] = {
            "model": opened.reader.name,
            **evaluate_files(opened.reader, typed, features_only=features_only, shapes=shapes and not features_only, held_out=held_out),
        }
    if lengths:
        if model not in NAMES:
            raise click.UsageError(
                f"--model {model}: lengths are judged with {' or '.join(NAMES)}; `hmas eval lengths --net` takes a folder"
            )
        result["length"] = judge(read_rows(lengths), Config(), reader=model)
    if as_json:
        say_json(result)
        return
    if typed:
        _show(result["task"])
    if lengths:
        say(report(result["length"]))


def _opened(model: str) -> Opened:
    if model in NAMES:
        return ReaderSource(AgentsConfig(perception_reader=model), ModelStore(Path())).open()
    return open_folder(Path(model), model)


def _show(found: dict[str, Any]) -> None:
    say(f"task type: accuracy {found['accuracy']:.4f}, macro-F1 {found['macro_f1']:.4f}, ECE {found['ece']:.4f}, n {found['n']}\n")
    rows = [[name, entry["n"], entry["precision"], entry["recall"], entry["f1"]] for name, entry in found["classes"].items() if entry["n"]]
    say(table(["task", "n", "precision", "recall", "F1"], rows))
    if "shapes" in found:
        shown = [[name, *entry.values()] for name, entry in found["shapes"].items()]
        say("\n" + table(["sent as", "n", "accuracy", "ECE", "left unknown", "right if known"], shown))
    say("\n" + table(["source", "n", "accuracy"], [[name, entry["n"], entry["accuracy"]] for name, entry in found["sources"].items()]))
    say(
        "\n"
        + table(["confidence", "accuracy", "n"], [[entry["confidence"], entry["accuracy"], entry["n"]] for entry in found["reliability"]])
    )
    wrong = sorted(
        ((count, actual, guess) for actual, row in found["confusion"].items() for guess, count in row.items() if guess != actual),
        reverse=True,
    )
    if wrong:
        say("\n" + table(["taken for", "is", "n"], [[guess, actual, count] for count, actual, guess in wrong[:WORST]]))
