"""`hmas eval perception`: task types on labelled prompts, output lengths on measured ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from agents.models.store import ModelStore
from agents.perception.length_data import read_multi_model
from agents.perception.length_evaluation import evaluate, perceived
from agents.perception.readers import Opened, ReaderSource, open_folder
from agents.perception.reading import TASKS, PromptView, Reading
from agents.perception.training.data import is_typed
from agents.perception.training.evaluation import evaluate_files
from controller.config.schema import AgentsConfig
from controller.core.types import TaskType
from hmas.cli.output import hint, json_option, say, say_json, table

_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)
WORST = 12
"""Confusions that the text report names."""


@click.command()
@click.option("--data", "first", type=_FILES, required=True, help="File in the format of typed_prompts or multi_model_*; more may follow.")
@click.argument("more", type=_FILES, nargs=-1)
@click.option(
    "--model",
    default="shipped",
    show_default=True,
    help="shipped, rules, or a folder that `hmas train perception` wrote.",
)
@click.option("--features-only", is_flag=True, help="Judge it without the prompts' text, as where prompts may not leave the gateway.")
@json_option
def perception(first: Path, more: tuple[Path, ...], model: str, features_only: bool, as_json: bool) -> None:
    """Judge a perception model on files that it has not seen.

    Labelled prompts (JSON lines with prompt and task_type) are judged by task type: accuracy, F1, calibration, confusion, by class and by
    source. A pair of files with prompts and the output lengths of several models (multi_model_prompts and multi_model_output_lengths) is
    judged by length. Both may be given at once.

    \b
    Examples:
      hmas eval perception --data typed_prompts.jsonl.gz
      hmas eval perception --data typed.jsonl --model build/perception --json
      hmas eval perception --data multi_model_prompts.jsonl.gz multi_model_output_lengths.csv.gz
    """  # noqa: D301 - click reads \b as "do not rewrap"
    opened = _opened(model)
    files = (first, *more)
    typed = [path for path in files if not _is_table(path) and is_typed(path)]
    lengths = [path for path in files if path not in typed]
    result: dict[str, Any] = {"model": opened.reader.name}
    if typed:
        result["task"] = evaluate_files(opened.reader, typed, features_only=features_only)
    if lengths:
        result["length"] = _lengths(opened, lengths)
    if as_json:
        say_json(result)
        return
    if typed:
        _show(result["task"])
    for regime, contenders in result.get("length", {}).get("regimes", {}).items():
        rows = [[name, *_length_row(entry["overall"])] for name, entry in contenders.items()]
        say(f"\noutput length, {regime}")
        say(table(["forecast", "tau", "MAE tokens", "MAPE %", "pinball", "coverage of 0.5 and 0.9"], rows))


def _opened(model: str) -> Opened:
    if model in {"shipped", "rules"}:
        return ReaderSource(AgentsConfig(perception_reader=model), ModelStore(Path())).open()
    return open_folder(Path(model), model)


def _lengths(opened: Opened, files: list[Path]) -> dict[str, Any]:
    tables = [path for path in files if _is_table(path)]
    prompts = [path for path in files if not _is_table(path)]
    if len(tables) != 1 or len(prompts) != 1:
        raise click.UsageError(
            f"--data: lengths are judged on one file of prompts and one table of output lengths; got {len(prompts)} and {len(tables)}"
        )
    rows = read_multi_model(tables[0], prompts[0])

    def read(views: Sequence[PromptView]) -> list[tuple[Reading, TaskType]]:
        return [(reading, _task(reading)) for reading in opened.reader.read(views)]

    return evaluate(rows, perceived(rows, read), net=opened.net, report=hint)


def _task(reading: Reading) -> TaskType:
    """As perception decides it, where nothing else is configured."""
    best = max(reading.probabilities, default=0.0)
    return TASKS[reading.probabilities.index(best)] if best >= AgentsConfig().perception_min_confidence else TaskType.UNKNOWN


def _is_table(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".csv")


def _show(found: dict[str, Any]) -> None:
    say(f"task type: accuracy {found['accuracy']:.4f}, macro-F1 {found['macro_f1']:.4f}, ECE {found['ece']:.4f}, n {found['n']}\n")
    rows = [[name, entry["n"], entry["precision"], entry["recall"], entry["f1"]] for name, entry in found["classes"].items() if entry["n"]]
    say(table(["task", "n", "precision", "recall", "F1"], rows))
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


def _length_row(figures: dict[str, Any]) -> list[object]:
    coverage = figures["coverage"]
    return [
        figures["kendall_tau"],
        round(figures["mae_tokens"]),
        round(100 * figures["mape"]),
        figures["pinball"],
        f"{100 * coverage[2]:.1f} % / {100 * coverage[4]:.1f} %",
    ]
