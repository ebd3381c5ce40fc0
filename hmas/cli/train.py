"""`hmas train`: trains the models of perception and prediction on the operator's own data.

Heavy libraries are imported where they are used.
"""

import asyncio
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from hmas.agents.model_store.card import ModelCard, file_sha256, write_card
from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.lm import train as lm
from hmas.agents.prediction.regressor import SHIPPED, CatBoostRegressor, load_regressor
from hmas.agents.prediction.telemetry import labelled_of, read_messages, write_messages
from hmas.agents.prediction.training import REFIT_LEAST, SEED, refit
from hmas.cli.admin import config_option, read_config
from hmas.cli.models import warn_of_settings
from hmas.cli.output import check_writable, hint, json_option, say, say_json, table, writing
from hmas.cli.studies import EXIT_INTERRUPTED
from hmas.cli.values import Number
from hmas.controller.bus.address import without_secrets
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.derived import bus_url, models_dir
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError, ModelError, TraceError
from hmas.controller.core.messages import FEATURES, TELEMETRY, Message
from hmas.controller.runtime.clock import SystemClock

PERCEPTION, PREDICTION = "perception", "prediction"
NEWEST = 20_000
"""Newest messages of each stream that are read from the bus, which keeps about as many."""
CONNECT_WAIT_S = 5.0
_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_ON_BASE = tuple(name for name in lm.TrainSettings.__struct_fields__ if name not in {"base", "data", "out", "seed", "epochs", "batch"})
"""Options that apply only to a base."""
_WIDENING = "Factor on the spread of the quantiles, as an earlier run found it; 0, the default, measures it on held-out prompts."

out_option = click.option("--out", type=_FOLDER, help="Folder to write; default: a new version in the store.")


@click.group()
def train() -> None:
    """Train the models of the perception and prediction agents; `hmas-lab train-meta` trains meta's."""


@train.command("lengths", short_help="The length model that perception begins with.")
@click.option("--data", "files", type=_FILES, multiple=True, required=True, help="Answers of models, JSON lines. Repeatable.")
@click.option("--widening", type=Number(0.0, 4.0), default=0.0, help=_WIDENING)
@click.option("--trees", type=click.IntRange(1, 5000), default=250, show_default=True, help="Trees that are boosted.")
@click.option("--seed", type=click.IntRange(0), default=7, show_default=True, help="The same seed gives the same model.")
@out_option
@config_option
@json_option
def lengths(
    *, files: tuple[Path, ...], widening: float, trees: int, seed: int, out: Path | None, config_file: str | None, as_json: bool
) -> None:
    """Train the length model that perception begins with; its error is corrected live. Takes about a minute.

    A row has `prompt`, `output_tokens` and `model`; typed prompts with `output_origin` such as `llm:gpt-4` do, too.
    `hmas-lab training-data` makes such a file from public data.

    \b
    Example:
      hmas train lengths --data answers.jsonl.gz --out build/lengths
    """  # noqa: D301 - click reads \b as "do not rewrap"
    from hmas.agents.perception.lengths import base  # noqa: PLC0415
    from hmas.agents.perception.readers import LENGTHS_ONLY  # noqa: PLC0415
    from hmas.agents.perception.training.answers import corpus_of, read_answers  # noqa: PLC0415
    from hmas.agents.perception.training.lengths import Plan, fit_checked, write  # noqa: PLC0415

    check_writable(out or models_dir(read_config(config_file)), "--out" if out else "state_dir", folder=True)
    rows = read_answers(files)
    corpus = corpus_of(rows)
    hint(f"{len(corpus.examples)} answers to {len(corpus.prompts)} prompts")
    document = fit_checked(corpus, Plan(trees=trees, seed=seed, widening=widening), hint)
    given = {"trees": trees, "seed": seed} | ({"widening": widening} if widening else {})
    card = ModelCard(
        kind=PERCEPTION,
        format=LENGTHS_ONLY,
        created_s=SystemClock().now_s(),
        data_sha256={path.name: file_sha256(path) for path in files},
        command=_command("lengths", files, given),
        licence="that of its data",
        metrics={
            "answers": len(corpus.examples),
            "prompts": len(corpus.prompts),
            "widening": document["widening"],
            "longest": document["longest"],
        },
        details={
            "trained_on": dict(sorted(Counter(row.dataset for row in rows).items())),
            "known_models": sorted(document["offsets"]),
            "ranges": dict(zip(document["inputs"], document["ranges"], strict=True)),
        },
    )

    def write_to(folder: Path) -> None:
        write(document, folder / base.FILE)
        base.load(folder)

    _keep(PERCEPTION, card, write_to, out, config_file, as_json=as_json)


@train.command("perception", short_help="The perception agent's model: task types of prompts.")
@click.option("--data", type=_FILES, multiple=True, required=True, help="File of typed prompts, JSON lines; more may follow.")
@click.argument("more", type=_FILES, nargs=-1)
@click.option("--out", type=_FOLDER, default=Path("build/perception"), show_default=True, help="Folder of the finished model.")
@click.option("--base", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of a Hugging Face model to fine-tune.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of everything that is drawn.")
@click.option("--epochs", type=Number(), help="Passes; default 10 from scratch, at most 3 on a base.")
@click.option("--batch", type=click.IntRange(1), help="Rows of a step; default 128 from scratch, 8 on a base.")
@click.option("--work", type=_FOLDER, help="On a base: folder of checkpoints, default OUT.work.")
@click.option("--resume", is_flag=True, help="On a base: go on from the newest checkpoint.")
@click.option("--merge", is_flag=True, help="On a base: write merged weights instead of an adapter.")
@click.option("--kind", type=click.Choice(["auto", "causal", "encoder"]), help="On a base: what it is, default by its config.")
@click.option("--learning-rate", type=Number(), help="On a base: peak, default 2e-4.")
@click.option("--rank", type=int, help="On a base: of the adapter, default 16; 0 trains all weights.")
@click.option("--alpha", type=int, help="On a base: of the adapter, default 32.")
@click.option("--dropout", type=Number(), help="On a base: of the adapter, default 0.05.")
@click.option("--targets", help="On a base: modules that get adapters: auto, all-linear, or names with commas.")
@click.option("--accumulate", type=int, help="On a base: passes per step of the optimiser, default 1.")
@click.option("--excerpt-chars", type=int, help="On a base: characters of a prompt that the model sees.")
@click.option("--max-tokens", type=int, help="On a base: tokens of one row at most, default 1024.")
@click.option("--eval-every", type=int, help="On a base: steps between looks at the validation rows, default five an epoch.")
@click.option("--patience", type=int, help="On a base: looks without a better loss before it stops, default 4.")
@click.option("--limit", type=int, help="On a base: rows used at most, default all.")
@click.option("--licensed", is_flag=True, help="On a base: only rows whose licence lets the model be passed on.")
@click.option("--without", multiple=True, help="On a base: leave out sources with this in their name, and judge on them. Repeatable.")
@click.option("--threads", type=int, help="On a base: of the processor.")
@click.option("--gradient-checkpointing", is_flag=True, help="On a base: less memory for more time.")
@json_option
@click.pass_context
def perception(ctx: click.Context, /, **options: Any) -> None:
    """Train a model that predicts task types and output lengths of prompts.

    Without --base the shipped kind is trained from scratch on one core: a small transformer that runs on onnxruntime. It uses only rows
    whose licence allows it; `hmas-lab training-data` makes prompts that can be mixed in. With --base a causal or encoder model in Hugging
    Face format is fine-tuned by LoRA. Training needs torch (`make setup-train`, or pip install 'h-mas[train]'); `hmas models add` puts the
    result into the store.

    \b
    Examples:
      hmas train perception --data typed_prompts.jsonl.gz --out build/perception
      hmas train perception --base Qwen3-1.7B --data mine.jsonl theirs.jsonl --out build/lora
    """  # noqa: D301 - click reads \b as "do not rewrap"
    data = (*options.pop("data"), *options.pop("more"))
    as_json, base = options.pop("as_json"), options["base"]
    chosen = {name: value for name, value in options.items() if value is not None and value is not False and value != ()}
    card = _from_scratch(data, chosen) if base is None else _on_base(data, chosen)
    if card is None:
        ctx.exit(EXIT_INTERRUPTED)
    if as_json:
        say_json(msgspec.to_builtins(card))
        return
    figures = card.metrics["test" if base is None else "task"]
    told = ", ".join(f"{name} {figures[name]:.4f}" for name in ("accuracy", "macro_f1", "ece"))
    say(f"{chosen['out']}: {told} on {figures['n']} test prompts")
    hint(f"`hmas models add perception {chosen['out']}` puts it into the store")


def _from_scratch(data: tuple[Path, ...], chosen: dict[str, Any]) -> ModelCard:
    foreign = sorted(set(chosen) & set(_ON_BASE))
    if foreign:
        raise click.UsageError(f"--{foreign[0].replace('_', '-')} goes with --base")
    try:
        # The import takes seconds, and only this command needs it.
        from hmas.agents.perception.training.feeding import Settings  # noqa: PLC0415
        from hmas.agents.perception.training.trainer import train as train_tagger  # noqa: PLC0415
    except ImportError as error:
        raise ModelError(
            f"training needs {error.name or 'torch'}, which is not installed; `make setup-train` makes an environment with it in "
            "build/train, or pip install 'h-mas[train]'"
        ) from error
    check_writable(chosen["out"], folder=True)
    given: dict[str, Any] = {name: chosen[name] for name in ("seed", "batch") if name in chosen}
    if "epochs" in chosen:
        given["epochs"] = max(1, round(chosen["epochs"]))
    return train_tagger(data, chosen["out"], Settings(**given), SystemClock(), say=hint, command=_command(PERCEPTION, data, given))


def _on_base(data: tuple[Path, ...], chosen: dict[str, Any]) -> ModelCard | None:
    """Returns the card, None if the run was interrupted."""
    out: Path = chosen["out"]
    check_writable(out, folder=True)
    settings = lm.TrainSettings(**{"work": out.with_name(out.name + ".work"), **chosen, "data": data})
    given = {name: value for name, value in chosen.items() if name not in {"out", "work", "resume"}}
    trained = lm.run(settings, clock=SystemClock(), say=hint, command=_command(PERCEPTION, data, given))
    if trained.card is None:
        hint(f"interrupted; the same command with --resume goes on from {trained.checkpoint or 'the beginning'}")
    return trained.card


@train.command("prediction", short_help="The prediction agent's model: what requests cost.")
@click.option("--data", "files", type=_FILES, multiple=True, help="Recorded telemetry (--record). Repeatable.")
@click.option("--from-bus", is_flag=True, help="Train on from what the configured bus still holds.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Also write the telemetry read from the bus to this file.")
@click.option("--seed", type=click.IntRange(0), default=SEED, show_default=True, help="The same seed gives the same model.")
@out_option
@click.option("--use", is_flag=True, help="Put the new version in force at once.")
@config_option
@json_option
def prediction(
    *,
    files: tuple[Path, ...],
    from_bus: bool,
    record: Path | None,
    seed: int,
    out: Path | None,
    use: bool,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Train the active model of the prediction agent on, from telemetry; it keeps what it has learnt.

    A model that does no better on the newest fifth, which it was not trained on, is not stored; --out writes it all the same.

    \b
    Examples:
      hmas train prediction --from-bus --record week.jsonl --use
      hmas train prediction --data week.jsonl           # a new version; see hmas models list
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if (out is not None) and use:
        raise click.UsageError("--use needs a version in the store; allowed: either --out or --use")
    if record is not None and not from_bus:
        raise click.UsageError("--record writes what --from-bus reads; allowed: both together")
    if bool(files) == from_bus:
        raise click.UsageError("telemetry comes from files or from the bus; allowed: either --data or --from-bus")
    check_writable(out or models_dir(read_config(config_file)), "--out" if out else "state_dir", folder=True)
    if record is not None:
        check_writable(record, "--record")
    config = read_config(config_file)
    messages = uvloop.run(_from_bus(config)) if from_bus else read_messages(files)
    if record is not None:
        hint(f"{write_messages(record, messages)} messages written to {record}")
    fresh, better = _refitted(messages, load_regressor(ModelStore(models_dir(config)).current(PREDICTION) or SHIPPED), seed)
    command = _command(PREDICTION, files, {"from_bus": from_bus, "seed": seed} if from_bus else {"seed": seed})
    card = msgspec.structs.replace(fresh.card, command=command, created_s=SystemClock().now_s())
    _keep(PREDICTION, card, fresh.save, out, config_file, better=better, use=use, as_json=as_json)


def _refitted(messages: list[Message], before: CatBoostRegressor, seed: int) -> tuple[CatBoostRegressor, bool]:
    """Returns the new model, and whether it does better on the held-out part."""
    learnt = labelled_of(messages, before)
    hint(f"{len(learnt)} requests with features and outcome")
    if len(learnt) < REFIT_LEAST:
        raise TraceError(f"telemetry with {len(learnt)} requests that have features and outcome; allowed: {REFIT_LEAST} and more")
    fresh, errors = refit(before, learnt, seed)
    hint(f"mean log error on the newest fifth, which was not trained on: {errors['old']:.4f} before, {errors['new']:.4f} after")
    return fresh, errors["new"] < errors["old"]


async def _from_bus(config: Config) -> list[Message]:
    url = bus_url(config)
    bus = RedisBus(url, config.bus.key_prefix)
    await bus.start()
    try:
        for _ in range(round(CONNECT_WAIT_S / 0.1)):
            if bus.health.connected:
                break
            await asyncio.sleep(0.1)
        else:
            raise ConfigError(
                f"the bus at {without_secrets(url)}: {bus.health.detail or 'no answer'}; bus.url or HMAS_BUS__URL names another"
            )
        return [*await bus.latest(FEATURES, NEWEST), *await bus.latest(TELEMETRY, NEWEST)]
    finally:
        await bus.close()


def _keep(
    kind: str,
    card: ModelCard,
    write_to: Callable[[Path], None],
    out: Path | None,
    config_file: str | None,
    *,
    better: bool = True,
    use: bool = False,
    as_json: bool = False,
) -> None:
    """Writes a model into a folder or, if it is `better` than the one in force, into the store, and prints its figures."""
    if out is not None:
        with writing(out):
            write_to(out)
            card = write_card(out, card)
        hint(f"written to {out}; `hmas models add {kind} {out}` puts it into the store")
    elif not better:
        hint("not stored: it does no better than the model in force, which stays; --out FOLDER writes it all the same")
    else:
        store = ModelStore(models_dir(read_config(config_file)))
        with tempfile.TemporaryDirectory() as folder:
            write_to(Path(folder))
            version = store.add(kind, Path(folder), card)
        if use:
            store.use(kind, version)
            warn_of_settings(kind, config_file)
        hint(f"stored as {version}{' and put in force' if use else f'; hmas models use {kind} {version} puts it in force'}")
        card = msgspec.structs.replace(card, version=version)
    if as_json:
        say_json(msgspec.to_builtins(card))
    else:
        say(table(["figure", "value"], sorted((name, value) for name, value in card.metrics.items() if isinstance(value, int | float))))


def _command(model: str, data: tuple[Path, ...], given: dict[str, Any]) -> str:
    """Returns the command line that makes the model again."""
    words = [word for path in data for word in ("--data", path.name)]
    for name, value in given.items():
        for one in value if isinstance(value, tuple) else (value,):
            words += [f"--{name.replace('_', '-')}"] + ([] if one is True else [str(one)])
    return shlex.join(["hmas", "train", model, *words])
