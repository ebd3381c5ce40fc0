"""`hmas-lab training-data`, `hmas-lab cost-model` and `hmas-lab llm-pilot`: what the shipped models are made from."""

import shlex
from pathlib import Path

import click
import msgspec

from hmas.agents.model_store.card import ModelCard, file_sha256, write_card
from hmas.cli.output import hint, json_option, say, say_json, table
from hmas_lab.llm_pilot.evaluation import PER_CELL, evaluate_files, finite
from hmas_lab.llm_pilot.files import FORMULA, KIND, load_profile_model, save_profile_model
from hmas_lab.llm_pilot.model import fit
from hmas_lab.llm_pilot.rows import read_rows
from hmas_lab.training.answers import gather, write_answers
from hmas_lab.training.cost_model import EPISODES, HELD_OUT, accept, measure, train, with_metrics
from hmas_lab.training.typed import GENERATED_PROMPTS, LENGTH_FILES, PROMPTS_FILE, load, own_rows, write_rows

DATA = click.Path(exists=True, file_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PARTS = ("typed", "generated", "answers")
PILOT_LICENCE = "CDLA-Permissive-2.0 where the logs are LLM-Pilot's (IBM; Lazuka et al., SC24), else that of the logs"


@click.command("training-data")
@click.option("--data", type=DATA, envvar="HMAS_DATA_DIR", required=True, help="Folder with prompts/. [env: HMAS_DATA_DIR]")
@click.option("--out", type=FOLDER, default=Path("build/training"), show_default=True, help="Folder of the files.")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Only these. Repeatable.")
@click.option("--generated", type=click.IntRange(0), default=GENERATED_PROMPTS, show_default=True, help="Prompts that the grammar makes.")
@click.option("--without", multiple=True, help="Take no material for generated prompts from sources with this in their name. Repeatable.")
def training_data(*, data: Path, out: Path, parts: tuple[str, ...], generated: int, without: tuple[str, ...]) -> None:
    """Write what the shipped models learn from: public data under the licences that count, and the project's own prompts.

    typed.jsonl.gz and generated.jsonl.gz are for `hmas train perception`, answers.jsonl.gz is for `hmas train lengths`.

    \b
    Example:
      hmas-lab training-data --data DIR --out build/training
    """  # noqa: D301 - click reads \b as "do not rewrap"
    out.mkdir(parents=True, exist_ok=True)
    wanted = parts or PARTS
    if {"typed", "generated"} & set(wanted):
        rows = load(data)
        for part in ("typed", "generated"):
            if part in wanted:
                found = rows if part == "typed" else own_rows(rows, generated, without=without)
                write_rows(found, out / f"{part}.jsonl.gz")
                hint(f"{out / part}.jsonl.gz: {len(found)} prompts")
    if "answers" in wanted:
        prompts, lengths = (data / name for name in LENGTH_FILES)
        answers = gather(lengths, prompts, data / PROMPTS_FILE)
        write_answers(answers, out / "answers.jsonl.gz")
        hint(f"{out / 'answers'}.jsonl.gz: {len(answers)} answers")


@click.command("cost-model")
@click.option("--episodes", type=click.IntRange(10, 20_000), default=EPISODES, show_default=True, help="Generated engines and loads.")
@click.option("--held-out", type=click.IntRange(2, 2_000), default=HELD_OUT, show_default=True, help="More of them, to measure on.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The same seed gives the same model.")
@click.option("--out", type=FOLDER, required=True, help="Folder to write.")
@json_option
def cost_model(*, episodes: int, held_out: int, seed: int, out: Path, as_json: bool) -> None:
    """Train the cost model of the prediction agent from nothing, on generated episodes with random engines and loads.

    \b
    Example:
      hmas-lab cost-model --out agents/prediction/models/cost
    """  # noqa: D301 - click reads \b as "do not rewrap"

    def tell(done: int, of: int) -> None:
        if done % 50 == 0 or done == of:
            hint(f"{done} of {of} episodes")

    command = shlex.join(["hmas-lab", "cost-model", "--episodes", str(episodes), "--held-out", str(held_out), "--seed", str(seed)])
    regressor = accept(train(seed, episodes, tell), seed + 1, held_out)
    hint(f"measuring on {held_out} other engines and loads")
    regressor = with_metrics(regressor, measure(regressor, seed + 1, held_out), command)
    regressor.save(out)
    card = write_card(out, regressor.card)
    hint(f"written to {out}; agents.prediction_model takes a folder")
    if as_json:
        say_json(msgspec.to_builtins(card))
    else:
        say(table(["figure", "value"], sorted(card.metrics.items())))


@click.command("llm-pilot")
@click.option("--data", "files", type=FILE, multiple=True, required=True, help="Request logs, CSV or gzip. Repeatable.")
@click.option("--out", type=FOLDER, help="Train on the logs and write the model here.")
@click.option("--formula", type=FOLDER, help="With --out: write the formula alone into this folder, too.")
@click.option("--model", type=DATA, help="Folder of a model to evaluate on the logs; default: the one that lies beside this program.")
@click.option("--per-cell", type=click.IntRange(20), default=PER_CELL, show_default=True, help="Rows of a cell learnt from, at most.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The same seed gives the same model.")
def llm_pilot(*, files: tuple[Path, ...], out: Path | None, formula: Path | None, model: Path | None, per_cell: int, seed: int) -> None:
    """Train a model of times on request logs in LLM-Pilot's format, or evaluate one on logs that it has not seen (JSON).

    Its formula (formula.json) gives the prediction agent the speed of an engine that is known by its data sheet.

    \b
    Examples:
      hmas-lab llm-pilot --data llm_pilot_requests.csv.gz --out build/llm-pilot
      hmas-lab llm-pilot --data unseen.csv.gz --model build/llm-pilot
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if out is None:
        trained, card = load_profile_model(model) if model is not None else load_profile_model()
        say_json(finite({"trained_on": card.data_sha256, **evaluate_files(files, trained)}))
        return
    rows = read_rows(files)
    hint(f"{len(rows)} requests in {len(set(rows.cells()))} cells")
    names = [word for path in files for word in ("--data", path.name)]
    card = ModelCard(
        kind=KIND,
        command=shlex.join(["hmas-lab", "llm-pilot", *names, "--seed", str(seed)]),
        data_sha256={path.name: file_sha256(path) for path in files},
        licence=PILOT_LICENCE,
        metrics={"rows": len(rows)},
    )
    save_profile_model(fit(rows, seed=seed, per_cell=per_cell), out, card)
    if formula is not None:
        formula.mkdir(parents=True, exist_ok=True)
        (formula / FORMULA).write_bytes((out / FORMULA).read_bytes())
        write_card(formula, msgspec.structs.replace(card, format="formula"))
    hint(f"written to {out}")
