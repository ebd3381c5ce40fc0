"""`hmas eval lengths`: evaluates predicted output lengths (quantiles) on real outputs of many models, next to simple baselines."""

import csv
import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.lengths.base import LengthBase, Stored, load
from hmas.agents.perception.model import is_sound
from hmas.agents.perception.readers import ReaderSource
from hmas.agents.perception.reading import TASKS, PromptView, Reader, Reading
from hmas.agents.perception.training.lengths.by_shape import beside_bare, by_shape
from hmas.agents.perception.training.lengths.corpus import Corpus, answers_of, gather
from hmas.agents.perception.training.lengths.data import LENGTH_COLUMNS, LengthRow, read_multi_model, read_typed
from hmas.agents.perception.training.lengths.evaluation import OURS, REGIMES, evaluate, perceived
from hmas.agents.perception.training.lengths.fitting import Plan, train
from hmas.cli.admin import config_option, read_config
from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.controller.config.derived import models_dir
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import TraceError
from hmas.controller.core.lengths import LEVELS
from hmas.controller.core.types import TaskType

READ_AT_ONCE = 64
BY_SHAPE = "by shape"


@click.command("lengths")
@click.option(
    "--data",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    required=True,
    help="multi_model_output_lengths.csv.gz with its multi_model_prompts.jsonl.gz, or typed prompts with outputs. Repeatable.",
)
@click.option("--reader", default="shipped", show_default=True, help="Who reads the prompts: shipped, rules, store, or a version in it.")
@click.option("--net", "net_folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another length model's folder.")
@click.option("--regime", "regimes", type=click.Choice((*REGIMES, BY_SHAPE)), multiple=True, help="Only these. Repeatable.")
@click.option("--ours-only", is_flag=True, help="Leave the baselines out.")
@click.option("--rows", "most", type=click.IntRange(100), help="At most so many answers, drawn at random.")
@click.option(
    "--trained",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="What the text baselines begin with, as the length model begins with its net: the files that it was trained on. Repeatable.",
)
@click.option(
    "--held-out",
    is_flag=True,
    help="Train a base on three quarters of the prompts of --trained; judge the last quarter, without the reader's own lengths.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the order in which requests arrive.")
@config_option
@json_option
def eval_lengths(
    *,
    files: tuple[Path, ...],
    reader: str,
    net_folder: Path | None,
    regimes: tuple[str, ...],
    ours_only: bool,
    most: int | None,
    trained: tuple[Path, ...],
    held_out: bool,
    seed: int,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Evaluate predictions of output lengths: coverage, Kendall's tau, errors.

    "cold": nothing is learnt from the files. "new prompts": the model learns from answers as they arrive, but is evaluated only on prompts
    of which it has seen no answer of any model. "as it comes": every answer is predicted, then learnt; prompts return with other models.
    "by shape": every answer in every shape of request, cold and after 100 and 1,000 answers of mixed traffic.

    \b
    Examples:
      hmas eval lengths --data multi_model_output_lengths.csv.gz --data multi_model_prompts.jsonl.gz
      hmas eval lengths --data typed_prompts.jsonl.gz --regime cold --json
      hmas eval lengths --data new.csv.gz --data new.jsonl.gz --trained multi_model_output_lengths.csv.gz --trained
      multi_model_prompts.jsonl.gz --trained typed_prompts.jsonl.gz
    """  # noqa: D301 - click reads \b as "do not rewrap"
    config = read_config(config_file)
    found = judge(
        read_rows(files),
        config,
        reader=reader,
        net_folder=net_folder,
        regimes=regimes,
        ours_only=ours_only,
        most=most,
        trained=read_trained(trained),
        corpus=corpus_of_files(trained) if held_out else None,
        seed=seed,
    )
    if as_json:
        say_json(found)
    else:
        say(report(found))


def is_lengths_file(path: Path) -> bool:
    """Whether a file has output lengths by model: a CSV file with the columns of that format."""
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            head = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError):
        return False
    return all(column in head for column in LENGTH_COLUMNS)


def read_rows(files: Sequence[Path]) -> list[LengthRow]:
    """Rows of all files: each file of lengths is joined with the file of prompts named after it; every other file has typed prompts.

    Raises:
        TraceError: A file of lengths has no file of prompts, or there are no rows.
    """
    rows: list[LengthRow] = []
    left = list(files)
    while left:
        path = left.pop(0)
        if is_lengths_file(path):
            partner = next((other for other in left if not is_lengths_file(other)), None)
            if partner is None:
                raise TraceError(f"--data {path}: lengths without prompts; allowed: its multi_model_prompts.jsonl.gz named after it")
            left.remove(partner)
            rows.extend(read_multi_model(path, partner))
        else:
            lengths = next((other for other in left if is_lengths_file(other)), None)
            if lengths is not None and _has_prompt_ids(path):
                left.remove(lengths)
                rows.extend(read_multi_model(lengths, path))
            else:
                rows.extend(read_typed(path))
    if not rows:
        raise TraceError(f"--data {', '.join(map(str, files))}: no output of a model; allowed: rows whose output_origin begins with llm:")
    return rows


def read_trained(files: Sequence[Path]) -> list[LengthRow]:
    """The answers in these files from which `hmas train lengths` learns; empty if there are no files.

    Raises:
        TraceError: The files are not a file of lengths, its file of prompts and at most one file of typed prompts.
    """
    return answers_of(*_sorted(files))[0] if files else []


def corpus_of_files(files: Sequence[Path]) -> Corpus:
    """The corpus in these files from which `hmas train lengths` learns; errors as of `read_trained`."""
    return gather(*_sorted(files))


def _sorted(files: Sequence[Path]) -> tuple[Path, Path, Path | None]:
    """The file of lengths, the file of its prompts, and the file of typed prompts, None if there is none."""
    lengths = [path for path in files if is_lengths_file(path)]
    prompts = [path for path in files if path not in lengths and _has_prompt_ids(path)]
    typed = [path for path in files if path not in lengths and path not in prompts]
    if len(lengths) != 1 or len(prompts) != 1 or len(typed) > 1:
        raise TraceError(
            f"--trained {', '.join(map(str, files))}: {len(lengths)} files of lengths, {len(prompts)} of prompts, {len(typed)} others; "
            "allowed: one of lengths, one of its prompts, and none or one of typed prompts"
        )
    return lengths[0], prompts[0], typed[0] if typed else None


def judge(
    rows: Sequence[LengthRow],
    config: Config,
    *,
    reader: str = "shipped",
    net_folder: Path | None = None,
    regimes: Sequence[str] = (),
    ours_only: bool = False,
    most: int | None = None,
    trained: Sequence[LengthRow] = (),
    corpus: Corpus | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    """Evaluates output lengths with `hmas.agents.perception.training.lengths.evaluation`.

    Args:
        rows: Answers of models to prompts.
        config: For the reader's settings and the minimum confidence.
        reader: As `agents.perception_reader`.
        net_folder: Folder of a length model to use in place of the reader's own.
        regimes: The regimes to evaluate; all by default.
        ours_only: Leave the baselines out.
        most: If there are more rows, draw this many at random.
        trained: Answers with which the text baselines begin.
        corpus: The data for a held-out evaluation: a base is trained on three quarters of its prompts and evaluated on the rest; else None.
        seed: Seed of the draw and of the order of arrival.

    Raises:
        ModelError: The reader or the length model cannot be opened.
    """
    import numpy as np  # noqa: PLC0415

    if most is not None and len(rows) > most:
        rows = [rows[place] for place in np.sort(np.random.default_rng(seed).choice(len(rows), most, replace=False))]
    settings = msgspec.structs.replace(config.agents, perception_reader=reader)
    opened = ReaderSource(settings, ModelStore(models_dir(config))).open()
    base: LengthBase | None = load(net_folder) if net_folder is not None else opened.lengths
    held_out = corpus is not None
    if corpus is not None:
        rows, base = held_out_of(corpus, rows)
    hint(f"{len(rows)} answers; prompts are read by {opened.name}")

    def read(views: Sequence[PromptView]) -> list[tuple[Reading, TaskType]]:
        found = _read(opened.reader, views, config.agents.perception_min_confidence)
        # The reader was trained on these prompts too, so its lengths would favour a base that was not.
        return [(Reading(probabilities=reading.probabilities), task) for reading, task in found] if held_out else found

    found: dict[str, Any] = {"reader": opened.name, "rows": len(rows), "held_out": held_out, "regimes": {}}
    if plain := [regime for regime in regimes or REGIMES if regime != BY_SHAPE]:
        readings = perceived(rows, read)
        found |= evaluate(rows, readings, base=base, regimes=plain, baselines=not ours_only, trained=trained, seed=seed, report=hint)
    if not regimes or BY_SHAPE in regimes:
        shapes = by_shape(rows, read, base, seed=seed)
        found["by_shape"] = msgspec.to_builtins(shapes)
        found["beside_bare"] = {answers: beside_bare(scores) for answers, scores in shapes.items()}
    return found


def held_out_of(corpus: Corpus, rows: Sequence[LengthRow]) -> tuple[list[LengthRow], LengthBase]:
    """The rows of a quarter of all prompts, chosen by a hash of their text, and a base trained on the corpus without these."""
    examples = [example for example in corpus.examples if not _is_held_out(corpus.prompts[example.prompt])]
    document = train(msgspec.structs.replace(corpus, examples=examples), Plan(), hint)
    return [row for row in rows if _is_held_out(row.prompt)], LengthBase(msgspec.convert(document, Stored))


def _is_held_out(prompt: str) -> bool:
    return zlib.crc32(prompt.encode("utf-8", "replace")) % 4 == 0


def report(found: dict[str, Any]) -> str:
    """The results as tables."""
    parts = []
    for regime, contenders in found["regimes"].items():
        rows = [[name, *_figures(entry["overall"])] for name, entry in contenders.items()]
        parts.append(f"{regime}: {found['rows']} answers\n{table(_HEAD, rows)}")
        ours = contenders[OURS]
        grouped = [
            [name, *_figures(figures)]
            for part in ("by_collection", "by_dataset", "by_task")
            for name, figures in ours.get(part, {}).items()
        ]
        parts.append(f"{regime}, the length model by collection, data set and task\n{table(_HEAD, grouped)}")
    for answers, shapes in found.get("by_shape", {}).items():
        beside = found["beside_bare"][answers]
        judged = [[shape, *(f"{share:.2f}" for share in beside[shape]), *_figures(figures)] for shape, figures in shapes.items()]
        whose = "held-out prompts" if found["held_out"] else "all prompts"
        head = ["shape", "error / bare", "pinball / bare", *_HEAD[1:]]
        parts.append(
            f"by shape of request, {whose}, a model without a history, after {answers} answers of mixed shapes\n{table(head, judged)}"
        )
    if not found["regimes"]:
        return "\n\n".join(parts)
    settled = [[name, *_figures(figures)] for name, figures in found["settling"].items()]
    parts.append(f"the length model by answers learnt, over many orders of arrival\n{table(_HEAD, settled)}")
    whose = found["predictability"]["everything"]
    if whose is not None:
        parts.append(
            f"whose doing the lengths are (of the variance of their logs): prompt {whose['prompt_share']:.0%}, "
            f"model {whose['model_share']:.0%}, neither {whose['residual_share']:.0%}"
        )
        parts.append(
            "what would be reached by knowing it\n"
            + table(_HEAD, [[name, *_figures(figures)] for name, figures in whose["oracles"].items()])
        )
    parts.append(f"the paper states a MAPE of {found['paper_mape']:.1%} on data that it does not describe")
    return "\n\n".join(parts)


_HEAD = ["who", "answers", "tau", "MAE", "median APE", "MAPE", "pinball", "worst gap", *(f"{level:.0%}" for level in LEVELS)]


def _figures(score: dict[str, Any]) -> list[str]:
    return [
        str(score["rows"]),
        f"{score['kendall_tau']:.3f}",
        f"{score['mae_tokens']:.0f}",
        f"{score['median_ape']:.0%}",
        f"{score['mape']:.0%}",
        f"{score['pinball']:.4f}",
        f"{score['worst_gap']:.1%}",
        *(f"{share:.1%}" for share in score["coverage"]),
    ]


def _has_prompt_ids(path: Path) -> bool:
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            return "prompt_id" in msgspec.json.decode(file.readline(), type=dict[str, Any])
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return False


def _read(reader: Reader, views: Sequence[PromptView], least: float) -> list[tuple[Reading, TaskType]]:
    found: list[tuple[Reading, TaskType]] = []
    for begin in range(0, len(views), READ_AT_ONCE):
        for reading in reader.read(views[begin : begin + READ_AT_ONCE]):
            sound = reading if is_sound(reading) else Reading()
            likeliest = max(sound.probabilities, default=0.0)
            task = TASKS[sound.probabilities.index(likeliest)] if sound.probabilities and likeliest >= least else TaskType.UNKNOWN
            found.append((sound, task))
    return found
