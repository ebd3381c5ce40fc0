"""`hmas eval`: evaluates the models of perception and prediction on the operator's own data: tables of figures, or the same as JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.agents.model_store.store import ModelStore
from hmas.cli.admin import config_option, read_config
from hmas.cli.output import json_option, say, say_json, table
from hmas.controller.config.derived import models_dir
from hmas.controller.config.schema import AgentsConfig

Table = Mapping[str, Mapping[str, Any]]
"""Figures by row and column."""
NAMES = ("shipped", "rules")
WORST = 12
"""Confusions that are shown."""
_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

data_option = click.option("--data", type=_FILES, multiple=True, required=True, help="File that the model has not seen; more may follow.")
more_argument = click.argument("more", type=_FILES, nargs=-1)


@click.group("eval")
def evaluate() -> None:
    """Evaluate the models of the perception and prediction agents."""


@evaluate.command("perception", short_help="Task types, on labelled prompts.")
@data_option
@more_argument
@click.option("--model", default="shipped", show_default=True, help="shipped, rules, or a folder that `hmas train perception` wrote.")
@click.option("--features-only", is_flag=True, help="Judge it without the prompts' text, as where prompts may not leave the gateway.")
@click.option("--held-out", is_flag=True, help="Only the prompts that training on these files leaves out for judging (one in five).")
@json_option
def perception(*, data: tuple[Path, ...], more: tuple[Path, ...], model: str, features_only: bool, held_out: bool, as_json: bool) -> None:
    """Evaluate a perception model on labelled prompts: JSON lines with prompt and task_type.

    ECE is the expected calibration error: how far stated confidence lies from the share of right answers.

    \b
    Examples:
      hmas eval perception --data typed_prompts.jsonl.gz --held-out
      hmas eval perception --data typed.jsonl --model build/perception --json
    """  # noqa: D301 - click reads \b as "do not rewrap"
    from hmas.agents.perception.readers import ReaderSource, open_folder  # noqa: PLC0415
    from hmas.agents.perception.training.data import GENERATED, read_rows  # noqa: PLC0415
    from hmas.agents.perception.training.evaluation import evaluate_reader  # noqa: PLC0415
    from hmas.agents.perception.training.split import parts_of  # noqa: PLC0415

    known = model in NAMES
    opened = ReaderSource(AgentsConfig(perception_reader=model), ModelStore(Path())).open() if known else open_folder(Path(model), model)
    rows = read_rows([*data, *more])
    if held_out:
        # As training splits them: it takes the generated ones out first, and trains on them all.
        rows = parts_of([row for row in rows if row.source != GENERATED]).test
    found = evaluate_reader(opened.reader, rows, features_only=features_only)
    wrong = sorted(
        ((count, actual, guess) for actual, row in found["confusion"].items() for guess, count in row.items() if guess != actual),
        reverse=True,
    )
    tables: dict[str, Table] = {
        "task type": {"all": {name: found[name] for name in ("n", "accuracy", "macro_f1", "ece")}},
        "class": {name: entry for name, entry in found["classes"].items() if entry["n"]},
        "source": found["sources"],
        "confidence": {f"{entry['confidence']:.2f}": {"n": entry["n"], "accuracy": entry["accuracy"]} for entry in found["reliability"]},
        "taken for": {f"{guess}: {actual}": {"n": count} for count, actual, guess in wrong[:WORST]},
    }
    _report(opened.reader.name, tables, as_json=as_json)


@evaluate.command("lengths", short_help="Output lengths, on answers of models.")
@data_option
@more_argument
@click.option("--reader", default="shipped", show_default=True, help="Reads the prompts: shipped, rules, store, or a version in it.")
@click.option("--net", type=_FOLDER, help="Folder of a length model; default: the reader's own.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the order in which answers arrive.")
@config_option
@json_option
def lengths(
    *, data: tuple[Path, ...], more: tuple[Path, ...], reader: str, net: Path | None, seed: int, config_file: str | None, as_json: bool
) -> None:
    """Evaluate predictions of output lengths on answers: JSON lines with prompt, output_tokens and model.

    "cold": nothing is learnt from the files. "as it comes": every answer is predicted, then learnt from. The last columns are the shares of
    answers that were at most as long as each stated quantile.

    \b
    Example:
      hmas eval lengths --data answers.jsonl.gz --net build/lengths
    """  # noqa: D301 - click reads \b as "do not rewrap"
    from hmas.agents.perception.lengths.base import load  # noqa: PLC0415
    from hmas.agents.perception.readers import ReaderSource  # noqa: PLC0415
    from hmas.agents.perception.training.answers import read_answers  # noqa: PLC0415
    from hmas.agents.perception.training.evaluation import evaluate_lengths  # noqa: PLC0415
    from hmas.controller.core.lengths import LEVELS  # noqa: PLC0415

    config = read_config(config_file)
    settings = msgspec.structs.replace(config.agents, perception_reader=reader)
    opened = ReaderSource(settings, ModelStore(models_dir(config))).open()
    rows = [row for row in read_answers([*data, *more]) if row.model]
    base = opened.lengths if net is None else load(net)
    found = evaluate_lengths(opened.reader, base, rows, least=settings.perception_min_confidence, seed=seed)
    figures: dict[str, dict[str, Any]] = {}
    for regime, scored in found.items():
        plain = msgspec.to_builtins(scored)
        covered = {f"{level:.0%}": share for level, share in zip(LEVELS, plain.pop("coverage"), strict=True)}
        figures[regime] = plain | covered
    _report(str(net) if net is not None else opened.name, {"output length": figures}, as_json=as_json)


@evaluate.command("prediction", short_help="Times to first token, between tokens and in all, on telemetry.")
@data_option
@more_argument
@click.option("--model", type=_FOLDER, help="Folder of a cost model; default: the shipped one.")
@json_option
def prediction(*, data: tuple[Path, ...], more: tuple[Path, ...], model: Path | None, as_json: bool) -> None:
    """Evaluate predictions of times on recorded telemetry (`hmas train prediction --from-bus --record FILE`).

    The messages are replayed through the agent's model in the order of their times, so every prediction is made as it was live, before its
    outcome. "formula" is the same agent without the trained model.

    \b
    Example:
      hmas eval prediction --data week.jsonl --model build/cost
    """  # noqa: D301 - click reads \b as "do not rewrap"
    from hmas.agents.prediction.regressor import SHIPPED, load_regressor  # noqa: PLC0415
    from hmas.agents.prediction.telemetry import measured, read_messages  # noqa: PLC0415

    messages = read_messages([*data, *more])
    trained = load_regressor(model or SHIPPED)
    tables = {name: measured(messages, regressor) for name, regressor in (("model", trained), ("formula", None))}
    _report(str(model) if model is not None else "shipped", tables, as_json=as_json)


def _report(model: str, tables: Mapping[str, Table], *, as_json: bool) -> None:
    """Prints the tables of an evaluation, each with the title in the corner; empty ones are left out of the text."""
    if as_json:
        say_json({"model": model, "figures": tables})
        return
    say(f"model: {model}")
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for figures in rows.values() for column in figures))
        if rows:
            say("\n" + table([title, *columns], [[name, *(figures.get(column) for column in columns)] for name, figures in rows.items()]))
