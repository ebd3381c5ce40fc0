"""`hmas train perception`: trains the shipped kind of model from scratch, or a Hugging Face base with LoRA."""

import shlex
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.agents.perception.lm import train as lm
from hmas.agents.perception.lm.settings import TrainSettings
from hmas.cli.output import hint, json_option, say, say_json
from hmas.cli.studies import EXIT_INTERRUPTED
from hmas.controller.core.errors import ModelError
from hmas.controller.runtime.clock import SystemClock

_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_LM = tuple(name for name in TrainSettings.__struct_fields__ if name not in {"base", "data", "out", "seed", "epochs", "batch"})
"""Options that apply only to a base."""


@click.command()
@click.option("--data", type=_FILES, multiple=True, required=True, help="File of typed prompts, JSON lines; more may follow.")
@click.argument("more", type=_FILES, nargs=-1)
@click.option("--out", type=_FOLDER, default=Path("build/perception"), show_default=True, help="Folder of the finished model.")
@click.option("--base", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of a Hugging Face model to fine-tune.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of everything that is drawn.")
@click.option("--epochs", type=float, help="Passes; default 10 from scratch, at most 3 on a base.")
@click.option("--batch", type=click.IntRange(1), help="Rows of a step; default 128 from scratch, 8 on a base.")
@click.option("--generated", type=click.IntRange(0), help="From scratch: generated prompts that are mixed in, default 60000.")
@click.option("--work", type=_FOLDER, help="On a base: folder of checkpoints, default OUT.work.")
@click.option("--resume", is_flag=True, help="On a base: go on from the newest checkpoint.")
@click.option("--merge", is_flag=True, help="On a base: write merged weights instead of an adapter.")
@click.option("--kind", type=click.Choice(["auto", "causal", "encoder"]), help="On a base: what it is, default by its config.")
@click.option("--learning-rate", type=float, help="On a base: peak, default 2e-4.")
@click.option("--rank", type=int, help="On a base: of the adapter, default 16.")
@click.option("--alpha", type=int, help="On a base: of the adapter, default 32.")
@click.option("--dropout", type=float, help="On a base: of the adapter, default 0.05.")
@click.option("--targets", help="On a base: modules that get adapters: auto, all-linear, or names with commas.")
@click.option("--accumulate", type=int, help="On a base: passes per step of the optimiser, default 1.")
@click.option("--excerpt-chars", type=int, help="On a base: characters of a prompt that the model sees.")
@click.option("--max-tokens", type=int, help="On a base: tokens of one row at most, default 1024.")
@click.option("--eval-every", type=int, help="On a base: steps between looks at the validation rows, default five an epoch.")
@click.option("--patience", type=int, help="On a base: looks without a better loss before it stops, default 4.")
@click.option("--limit", type=int, help="On a base: rows used at most, default all.")
@click.option("--threads", type=int, help="On a base: of the processor.")
@click.option("--gradient-checkpointing", is_flag=True, help="On a base: less memory for more time.")
@json_option
@click.pass_context
def perception(ctx: click.Context, /, **options: Any) -> None:
    """Train a model that predicts task types and output lengths of prompts.

    Without --base the shipped kind is trained from scratch on one core: a small transformer that runs on onnxruntime. It uses only rows
    whose licence allows it, and adds generated prompts. With --base a causal or encoder model in Hugging Face format is fine-tuned by
    LoRA. Training needs torch (`make setup-train`, or pip install 'h-mas[train]'); `hmas models add` puts the result into the store.

    \b
    Examples:
      hmas train perception --data typed_prompts.jsonl.gz --out build/perception
      hmas train perception --base Qwen3-1.7B --data mine.jsonl theirs.jsonl --out build/lora
    """  # noqa: D301 - click reads \b as "do not rewrap"
    data = (*options.pop("data"), *options.pop("more"))
    as_json, base = options.pop("as_json"), options["base"]
    chosen = {name: value for name, value in options.items() if value is not None and value is not False}
    if base is None:
        _from_scratch(data, chosen, as_json=as_json)
    else:
        ctx.exit(_on_base(data, chosen, as_json=as_json))


def _from_scratch(data: tuple[Path, ...], chosen: dict[str, Any], *, as_json: bool) -> None:
    foreign = sorted(set(chosen) & set(_LM))
    if foreign:
        raise click.UsageError(f"--{foreign[0].replace('_', '-')} goes with --base")
    try:
        # The import takes seconds, and only this command needs it.
        from hmas.agents.perception.training.feeding import Settings  # noqa: PLC0415
        from hmas.agents.perception.training.trainer import train  # noqa: PLC0415
    except ImportError as error:
        raise ModelError(
            f"training needs {error.name or 'torch'}, which is not installed; `make setup-train` makes an environment with it in "
            "build/train, or pip install 'h-mas[train]'"
        ) from error
    given: dict[str, Any] = {name: chosen[name] for name in ("seed", "generated", "batch") if name in chosen}
    if "epochs" in chosen:
        given["epochs"] = max(1, round(chosen["epochs"]))
    command = shlex.join(["hmas", "train", "perception", "--data", *(path.name for path in data), *_words(given)])
    card = train(data, chosen["out"], Settings(**given), SystemClock(), say=hint, command=command)
    if as_json:
        say_json(msgspec.to_builtins(card))
        return
    figures = card.metrics["test"]
    told = ", ".join(f"{name} {figures[name]:.4f}" for name in ("accuracy", "macro_f1", "ece"))
    say(f"{chosen['out']}: {told} on {figures['n']} test prompts")
    hint(f"`hmas models add perception {chosen['out']}` puts it into the store")


def _on_base(data: tuple[Path, ...], chosen: dict[str, Any], *, as_json: bool) -> int:
    if "generated" in chosen:
        raise click.UsageError("--generated goes without --base")
    out: Path = chosen["out"]
    settings = TrainSettings(**{"work": out.with_name(out.name + ".work"), **chosen, "data": data})
    words = _words({name: value for name, value in chosen.items() if name not in {"out", "base", "work", "resume"}})
    command = shlex.join(["hmas", "train", "perception", "--base", str(settings.base), "--data", *map(str, data), *words])
    trained = lm.run(settings, clock=SystemClock(), say=hint, command=command)
    if trained.card is None:
        hint(f"interrupted; the same command with --resume goes on from {trained.checkpoint or 'the beginning'}")
        return EXIT_INTERRUPTED
    if as_json:
        say_json(msgspec.to_builtins(trained.card))
        return 0
    task = trained.card.metrics["task"]
    say(
        f"{trained.folder}: accuracy {task['accuracy']:.4f} (most frequent type {task['majority_accuracy']:.4f}), macro-F1 "
        f"{task['macro_f1']:.4f}, ECE {task['ece']:.4f}, n {task['rows']}"
    )
    hint(f"`hmas models add perception {trained.folder}` puts it into the store")
    return 0


def _words(chosen: dict[str, Any]) -> list[str]:
    return [
        word
        for name, value in chosen.items()
        if name != "out"
        for word in ([f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)])
    ]
