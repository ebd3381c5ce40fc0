"""`hmas-lab train-meta`: simulates workloads under a short list of policies, fits meta's classifier and table to what served best."""

import shlex
import tempfile
from collections import Counter
from pathlib import Path

import click
import msgspec

from hmas.agents.model_store.ranges import RANGES, ranges_of
from hmas.agents.model_store.store import ModelStore
from hmas.cli.admin import config_option, read_config
from hmas.cli.models import warn_of_settings
from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.controller.config.derived import models_dir
from hmas.controller.core.errors import TraceError
from hmas.controller.runtime.clock import SystemClock
from hmas_lab.meta.classifier import KIND
from hmas_lab.meta.draws import SEED, draw
from hmas_lab.meta.features import FEATURES
from hmas_lab.meta.fitting import FOLDS, Worth, card_of, fit, held_out, save
from hmas_lab.meta.labels import gather
from hmas_lab.meta.regimes import write_table
from hmas_lab.meta.table import find_rows

WORKLOADS = 120
ABOUT = "Found by hmas-lab train-meta on simulated workloads; what is in no regime keeps the configured policy."


@click.command("train-meta")
@click.option("--workloads", type=click.IntRange(FOLDS * 2, 10_000), default=WORKLOADS, show_default=True, help="Drawn and simulated.")
@click.option("--seed", type=click.IntRange(0), default=SEED, show_default=True, help="The same seed gives the same model.")
@click.option("--rows", type=click.Path(dir_okay=False, path_type=Path), help="Keeps what was simulated, and goes on from what is there.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write; default: a new version in the store.")
@click.option("--table", "table_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the change-point selector's table too.")
@click.option("--use", is_flag=True, help="Put the new version in force: meta takes it at its next start.")
@config_option
@json_option
def train_meta(
    *,
    workloads: int,
    seed: int,
    rows: Path | None,
    out: Path | None,
    table_file: Path | None,
    use: bool,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Fit the models of meta's learned selectors.

    Draws workloads (arrivals, mixes, loads, targets, fleets, admission) that no study reports, simulates each under fcfs, robust-edf, sjf,
    two-lane and wfq, and learns from V_long which of them serves best. About three seconds of one core a workload when compiled (make
    compile), eight when not. The figures are those of five folds: each on workloads that were not learnt from.

    \b
    Examples:
      hmas-lab train-meta --rows build/meta/rows.jsonl --table build/meta/regimes.json
      hmas-lab train-meta --workloads 400 --use
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if out is not None and use:
        raise click.UsageError("--use needs a version in the store; allowed: either --out or --use")
    # What simulating cannot mend is found before it.
    store = ModelStore(models_dir(read_config(config_file)))
    try:
        labelled = gather([draw(number, seed) for number in range(workloads)], rows, hint)
    except msgspec.DecodeError as error:
        raise TraceError(f"{rows}: {error}; allowed: a file that --rows has written, or none yet") from error
    hint("best policies: " + ", ".join(f"{name} {count}" for name, count in Counter(one.best for one in labelled).most_common()))
    found = held_out(labelled, seed)
    command = shlex.join(["hmas-lab", "train-meta", "--workloads", str(workloads), "--seed", str(seed)])
    card = card_of(labelled, found, command, SystemClock().now_s())
    ranges = ranges_of(FEATURES, [seen.features for one in labelled for seen in one.seen])
    card = msgspec.structs.replace(card, details=card.details | {RANGES: ranges})
    model = fit(labelled, seed)
    if table_file is not None:
        write_table(find_rows(labelled), table_file, ABOUT)
        hint(f"{table_file}: agents.meta_model takes it where agents.meta_selector is change-point")
    if out is not None:
        card = save(model, out, card)
        hint(f"written to {out}; agents.meta_model takes the folder")
    else:
        with tempfile.TemporaryDirectory() as folder:
            save(model, Path(folder), card)
            version = store.add(KIND, Path(folder), card)
        if use:
            store.use(KIND, version)
            warn_of_settings(KIND, config_file)
        card = msgspec.structs.replace(card, version=version)
        hint(f"stored as {version}{' and put in force' if use else f'; hmas models use {KIND} {version} puts it in force'}")
    if as_json:
        say_json(msgspec.to_builtins(card))
    else:
        say(_worth_table(found))


def _worth_table(found: dict[str, Worth]) -> str:
    rows = [(name, f"{one.accuracy:.1%}", f"{one.good:.2%}", f"{one.regret:.2%}") for name, one in found.items()]
    return table(["way to choose", "label hit", "good requests", "lost against the best"], rows)
