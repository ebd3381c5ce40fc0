"""`hmas train prediction`: trains the cost model on generated episodes, on telemetry, or on request logs of known hardware."""

import shlex
import tempfile
from pathlib import Path

import click
import msgspec
import uvloop

from hmas.agents.model_store.card import ModelCard, write_card
from hmas.agents.model_store.store import ModelStore
from hmas.agents.prediction.offline.evaluation import PER_CELL
from hmas.agents.prediction.offline.first_training import EPISODES, HELD_OUT, accept, measure, train, with_metrics
from hmas.agents.prediction.offline.llm_pilot import data_sha256, is_pilot_file, read_rows
from hmas.agents.prediction.offline.profile_files import save_profile_model
from hmas.agents.prediction.offline.profile_model import fit
from hmas.agents.prediction.regressor import KIND, SHIPPED, CatBoostRegressor, load_regressor
from hmas.agents.prediction.telemetry import labelled_of, read_messages, write_messages
from hmas.agents.prediction.training import REFIT_LEAST, SEED, refit
from hmas.cli.admin import config_option, read_config
from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.derived import models_dir
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError, TraceError
from hmas.controller.core.messages import FEATURES, TELEMETRY, Message
from hmas.controller.runtime.clock import SystemClock

NEWEST = 20_000
"""Newest messages of each stream that are read from the bus, which keeps about as many."""
CONNECT_WAIT_S = 5.0
LICENCE = "CDLA-Permissive-2.0 where the logs are LLM-Pilot's (IBM; Lazuka et al., SC24), else that of the logs"


@click.command("prediction")
@click.option(
    "--data",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Recorded telemetry (--record), or request logs in LLM-Pilot's format. Default: generated episodes. Repeatable.",
)
@click.option("--from-bus", is_flag=True, help="Train on from what the configured bus still holds.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Also write the telemetry read from the bus to this file.")
@click.option("--episodes", type=click.IntRange(10, 20_000), default=EPISODES, show_default=True, help="Generated engines and loads.")
@click.option("--held-out", type=click.IntRange(2, 2_000), default=HELD_OUT, show_default=True, help="More of them, to measure on.")
@click.option("--seed", type=click.IntRange(0), default=SEED, show_default=True, help="The same seed gives the same model.")
@click.option(
    "--per-cell", type=click.IntRange(20), default=PER_CELL, show_default=True, help="Of request logs, rows of a cell learnt from."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write; default: a new version in the store.")
@click.option("--use", is_flag=True, help="Put the new version in force at once.")
@config_option
@json_option
def train_prediction(
    *,
    files: tuple[Path, ...],
    from_bus: bool,
    record: Path | None,
    episodes: int,
    held_out: int,
    seed: int,
    per_cell: int,
    out: Path | None,
    use: bool,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Fit the model of the prediction agent.

    Without data the model is trained from scratch on generated episodes with random engines and loads, like the shipped one. With
    telemetry the training of the active model continues, and it keeps what it has learnt. With request logs of known hardware (columns
    model, gpu_type, n_gpus, num_users, ... as in LLM-Pilot) it trains the profile model behind `hmas eval prediction`, which needs --out.

    \b
    Examples:
      hmas train prediction                               # a new version; see hmas models list
      hmas train prediction --from-bus --record week.jsonl --use
      hmas train prediction --data llm_pilot_requests.csv.gz --out ./my-gpus
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if (out is not None) and use:
        raise click.UsageError("--use needs a version in the store; allowed: either --out or --use")
    if record is not None and not from_bus:
        raise click.UsageError("--record writes what --from-bus reads; allowed: both together")
    if files and from_bus:
        raise click.UsageError("--data and --from-bus exclude each other; allowed: one of them")
    made_from = [part for path in files for part in ("--data", path.name)] or ["--episodes", str(episodes), "--held-out", str(held_out)]
    command = shlex.join(["hmas", "train", "prediction", *(["--from-bus"] if from_bus else made_from), "--seed", str(seed)])
    if files and all(is_pilot_file(path) for path in files):
        card = _from_logs(files, out, command, seed=seed, per_cell=per_cell)
    else:
        card = _cost_model(
            read_config(config_file), files, out, command, from_bus=from_bus, record=record, use=use, drawn=(seed, episodes, held_out)
        )
    if as_json:
        say_json(msgspec.to_builtins(card))
    else:
        say(table(["figure", "value"], sorted((name, value) for name, value in card.metrics.items() if isinstance(value, int | float))))


def _from_logs(files: tuple[Path, ...], out: Path | None, command: str, *, seed: int, per_cell: int) -> ModelCard:
    if out is None:
        raise click.UsageError("request logs make a profile model, which the store does not hold; allowed: --out FOLDER")
    rows = read_rows(files)
    hint(f"{len(rows)} requests in {len(set(rows.cells()))} cells")
    model = fit(rows, seed=seed, per_cell=per_cell)
    card = ModelCard(kind=KIND, command=command, data_sha256=data_sha256(files), licence=LICENCE, metrics={"rows": len(rows)})
    written = save_profile_model(model, out, card)
    hint(f"written to {out}; hmas eval prediction --model {out} --data FILE measures it on files it has not seen")
    return written


def _cost_model(
    config: Config,
    files: tuple[Path, ...],
    out: Path | None,
    command: str,
    *,
    from_bus: bool,
    record: Path | None,
    use: bool,
    drawn: tuple[int, int, int],
) -> ModelCard:
    store = ModelStore(models_dir(config))
    if files or from_bus:
        messages = uvloop.run(_from_bus(config)) if from_bus else read_messages(files)
        if record is not None:
            hint(f"{write_messages(record, messages)} messages written to {record}")
        regressor = _refitted(messages, load_regressor(store.current(KIND) or SHIPPED))
        regressor = with_metrics(regressor, regressor.card.metrics, command)
    else:
        seed, episodes, held_out = drawn
        regressor = accept(train(seed, episodes, _tell), seed + 1, held_out)
        hint(f"measuring on {held_out} other engines and loads")
        regressor = with_metrics(regressor, measure(regressor, seed + 1, held_out), command)
    card = regressor.card
    if out is not None:
        regressor.save(out)
        hint(f"written to {out}; agents.prediction_model takes a folder")
        return write_card(out, card)
    with tempfile.TemporaryDirectory() as folder:
        regressor.save(Path(folder))
        version = store.add(KIND, Path(folder), msgspec.structs.replace(card, created_s=SystemClock().now_s()))
    if use:
        store.use(KIND, version)
    hint(f"stored as {version}{' and put in force' if use else f'; hmas models use {KIND} {version} puts it in force'}")
    return msgspec.structs.replace(card, version=version)


def _refitted(messages: list[Message], before: CatBoostRegressor) -> CatBoostRegressor:
    learnt = labelled_of(messages, before)
    hint(f"{len(learnt)} requests with features and outcome")
    if len(learnt) < REFIT_LEAST:
        raise TraceError(f"telemetry with {len(learnt)} requests that have features and outcome; allowed: {REFIT_LEAST} and more")
    fresh, losses = refit(before, learnt)
    hint(f"pinball loss on the newest fifth, which was not trained on: {losses['old']:.4f} before, {losses['new']:.4f} after")
    return fresh


async def _from_bus(config: Config) -> list[Message]:
    if not config.bus.url:
        raise ConfigError("bus.url is empty; allowed with --from-bus: the address of a Redis server (or HMAS_BUS__URL)")
    import asyncio  # noqa: PLC0415

    bus = RedisBus(config.bus.url, config.bus.key_prefix)
    await bus.start()
    try:
        for _ in range(round(CONNECT_WAIT_S / 0.1)):
            if bus.health.connected:
                break
            await asyncio.sleep(0.1)
        else:
            raise ConfigError(f"bus.url {config.bus.url}: {bus.health.detail or 'no answer'}")
        return [*await bus.latest(FEATURES, NEWEST), *await bus.latest(TELEMETRY, NEWEST)]
    finally:
        await bus.close()


def _tell(done: int, of: int) -> None:
    if done % 50 == 0 or done == of:
        hint(f"{done} of {of} episodes")
