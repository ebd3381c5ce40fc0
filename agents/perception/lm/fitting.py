"""One training run from rows to artefact, on transformers' own Trainer. Needs the extra `train`; import it where it is used."""

import contextlib
import functools
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging as hf_logging

from hmas.agents.model_store.card import ModelCard, file_sha256
from hmas.agents.perception.lm.answers import SIDE_CHARS, softened
from hmas.agents.perception.lm.artefact import open_artefact, precision, write_artefact
from hmas.agents.perception.lm.bases import Base, fingerprint, kind_of, open_base, with_adapter
from hmas.agents.perception.lm.details import ADAPTER, FORMAT, MERGED, LmDetails, label_tokens
from hmas.agents.perception.lm.judging import calibrated, judged
from hmas.agents.perception.lm.passes import InOrder, Passes, sent
from hmas.agents.perception.lm.scoring import (
    CausalCollator,
    EncoderCollator,
    Scorer,
    accepted,
    causal_row,
    encoder_loss,
    encoder_row,
    render,
)
from hmas.agents.perception.lm.train import LOG, Run, Trained, TrainSettings, begin, newest_checkpoint
from hmas.agents.perception.reading import PromptView
from hmas.agents.perception.training.clients import Clients
from hmas.agents.perception.training.data import GENERATED, Row, read_rows
from hmas.agents.perception.training.split import evenly, parts_of
from hmas.controller.core.errors import ConfigError, ModelError
from hmas.controller.runtime.clock import Clock

Say = Callable[[str], None]
"""Takes one line of text for people."""
MINUTE_S = 60.0

WORKERS = 5
"""Processes that prepare batches for a GPU."""
LOOKS_PER_EPOCH = 5
LOGS_PER_RUN = 50
WARMUP = 0.03
LEAST_GAIN = 1e-4
"""Improvement of the validation loss that counts: at a rate of almost nothing the loss improves by almost nothing, without end."""
COMPARED = 16
"""Prompts on which the reloaded artefact must answer like the trained model."""
TOLERANCE = 0.05
"""Largest difference of a probability, as a mean over these prompts: bfloat16 rounds, while a head that was not stored guesses."""


class Progress(TrainerCallback):  # type: ignore[misc]  # transformers is not there for the type checker
    """Reports loss, tokens per second and the remaining time, and every validation result."""

    def __init__(self, say: Say, clock: Clock) -> None:
        self._say = say
        self._clock = clock
        self._from: tuple[float, int, float] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the callback's signature
        """Starts the timer; a resumed run already has steps and tokens."""
        self._from = (self._clock.now_s(), state.global_step, float(state.num_input_tokens_seen))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Reports one line per log entry."""
        if logs is None or self._from is None:
            return
        if "loss" in logs:
            self._say(self._line(state, logs["loss"]))
        elif "eval_loss" in logs:
            best = state.best_metric
            told = f"validation loss {logs['eval_loss']:.4f} at step {state.global_step}"
            self._say(told if best is None or best >= logs["eval_loss"] else f"{told} (best {best:.4f})")

    def _line(self, state: Any, loss: float) -> str:
        assert self._from is not None
        start_s, first_step, first_tokens = self._from
        took_s = max(1e-9, self._clock.now_s() - start_s)
        done = state.global_step - first_step
        left_s = (state.max_steps - state.global_step) * took_s / max(1, done)
        left = f"{left_s:.0f} s" if left_s < MINUTE_S else f"{left_s / MINUTE_S:.0f} min"
        rate = (float(state.num_input_tokens_seen) - first_tokens) / took_s
        return f"step {state.global_step} of {state.max_steps}, loss {loss:.4f}, {rate:.0f} tokens/s, about {left} left"


class Sound(TrainerCallback):  # type: ignore[misc]  # transformers is not there for the type checker
    """Leaves out the steps whose gradient is not finite: in half precision one batch can make one, and no weight would survive it."""

    def __init__(self, say: Say) -> None:
        self.left_out = 0
        self._say = say

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Drops such a gradient."""
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        if torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            return
        self.left_out += 1
        self._say(f"step {state.global_step + 1} is left out: its gradient is not finite")
        for weight in model.parameters():
            weight.grad = None


class Stopper(TrainerCallback):  # type: ignore[misc]  # transformers is not there for the type checker
    """Ends a run after its current step, with a checkpoint, once `asked` is set."""

    def __init__(self) -> None:
        self.asked = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - the callback's signature
        """Saves and stops if that was requested."""
        if self.asked:
            control.should_save = True
            control.should_training_stop = True
        return control


@contextlib.contextmanager
def stopping_on_signals(stopper: Stopper, say: Say) -> Iterator[None]:
    """SIGINT and SIGTERM request a stop with a checkpoint; a second signal ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        stopper.asked = True
        say("stopping after this step, with a checkpoint; once more stops at once")
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def fit(settings: TrainSettings, *, clock: Clock, say: Say, command: str) -> Trained:
    """Trains a model; see `hmas.agents.perception.lm.train.run`."""
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    kind = kind_of(settings.base, settings.kind)
    data_sha256 = {path.name: file_sha256(path) for path in settings.data}
    run = Run(settings=settings, base_fingerprint=fingerprint(settings.base), data_sha256=data_sha256)
    every = read_rows(settings.data)
    rows = evenly([row for row in every if row.source != GENERATED], settings.limit, settings.seed)
    own = evenly([row for row in every if row.source == GENERATED], settings.limit, settings.seed)
    parts = parts_of(rows, licensed=settings.licensed, without=settings.without)
    if len({row.task for row in rows}) < 2 or not (parts.train and parts.validation and parts.test):
        tasks = len({row.task for row in rows})
        raise ConfigError(f"data has {len(rows)} rows of {tasks} task types; allowed: two types or more, and enough rows to hold some out")
    counts = f"{len(parts.train)} rows to train and {len(own)} generated, {len(parts.validation)} to validate, {len(parts.test)} to test"
    say(f"{kind} base {settings.base}; {counts}")
    set_seed(settings.seed)
    # Weights in half precision would lose the small steps of a training of all of them.
    base = open_base(settings.base, kind, dtype=precision() if settings.rank else torch.float32)
    details = LmDetails(
        kind=kind,
        weights=MERGED if settings.merge else ADAPTER,
        base=str(settings.base.resolve()),
        base_fingerprint="" if settings.merge else run.base_fingerprint,
        excerpt_chars=settings.excerpt_chars,
        side_chars=SIDE_CHARS,
        max_tokens=_max_tokens(base, settings.max_tokens),
        tokens=label_tokens(base.tokenizer) if kind == "causal" else None,
        rank=settings.rank,
    )
    model = with_adapter(base, rank=settings.rank, alpha=settings.alpha, dropout=settings.dropout, targets=settings.targets)
    checkpoint = begin(run)
    say = _also_to(settings.work / LOG, say)
    if settings.resume:
        say(f"going on from {checkpoint}" if checkpoint else "no whole checkpoint yet: starting at the beginning")
    sizes = [(part.numel(), part.requires_grad) for part in model.parameters()]
    say(f"training {sum(size for size, learns in sizes if learns) / 1e6:.2f} M of {sum(size for size, _ in sizes) / 1e6:.1f} M parameters")
    stopper, sound = Stopper(), Sound(say)
    collate: Callable[..., Any] = EncoderCollator(base.tokenizer.pad_token_id)
    if details.tokens is not None:
        collate = CausalCollator(base.tokenizer.pad_token_id, details.tokens.longest, accepted(model))
    passes = Passes(parts.train, own, settings, functools.partial(_example, base, details))
    clients = Clients([*parts.train, *own])
    held_out = sent(parts.validation, clients, settings.seed)
    trainer = InOrder(
        model=model,
        args=_arguments(settings, passes),
        train_dataset=passes,
        eval_dataset=[
            _example(base, details, view, row.label, row.output_tokens) for view, row in zip(held_out, parts.validation, strict=True)
        ],
        data_collator=collate,
        compute_loss_func=encoder_loss if kind == "encoder" else None,
        callbacks=[EarlyStoppingCallback(settings.patience, LEAST_GAIN), sound, stopper, Progress(say, clock)],
    )
    trainer.remove_callback(PrinterCallback)
    with stopping_on_signals(stopper, say):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if stopper.asked:
        left = newest_checkpoint(settings.work)
        say(f"stopped; {left} is the newest checkpoint, --resume goes on from there")
        return Trained(card=None, folder=settings.out, checkpoint=str(left or ""))
    scorer = Scorer(trainer.model, base.tokenizer, details, batch=settings.batch)
    details = calibrated(scorer.score, parts.validation, held_out, details)
    metrics = judged(scorer.score, parts.test, parts.train, details)
    if settings.without:
        left_out = [row for row in rows if any(name in row.source for name in settings.without)]
        metrics["left_out"] = judged(scorer.score, left_out, parts.train, details)
    metrics["run"] = {
        "steps": trainer.state.global_step,
        "left_out_steps": sound.left_out,
        "best_step": trainer.state.best_global_step,
        "validation_loss": round(float(trainer.state.best_metric), 4),
        "stopped_early": trainer.state.global_step < trainer.state.max_steps,
    }
    card = ModelCard(
        kind="perception",
        format=FORMAT,
        created_s=round(clock.now_s(), 3),
        data_sha256=run.data_sha256,
        command=command,
        metrics=metrics,
        details=msgspec.to_builtins(details),
    )
    return Trained(card=_stored(settings.out, scorer, base, card, parts.test), folder=settings.out)


def _stored(folder: Path, scorer: Scorer, base: Base, card: ModelCard, rows: Sequence[Row]) -> ModelCard:
    """Writes the artefact beside `folder`, reloads it, compares its answers on some rows, and only then renames it to `folder`."""
    views = [row.view() for row in rows[:COMPARED]]
    before = scorer.score(views)
    half_done = folder.with_name(f".{folder.name}.writing")
    written = write_artefact(half_done, scorer.model, base.tokenizer, card)
    after = open_artefact(half_done)[2].score(views)
    for name, was, now in zip(("task", "length"), before, after, strict=True):
        gap = float(np.abs(softened(was, 1.0) - softened(now, 1.0)).max(axis=1).mean())
        # The length question follows the likeliest label, and a tie may go either way.
        same_label = bool((before[0].argmax(axis=1) == after[0].argmax(axis=1)).all())
        if gap > TOLERANCE and (name == "task" or same_label):
            raise ModelError(f"{half_done}: {name} probabilities differ by {gap:.3f} from those in training; allowed: {TOLERANCE}")
    try:
        if folder.exists():
            folder.rmdir()
        half_done.rename(folder)
    except OSError as error:
        raise ConfigError(f"out is {folder}: {error}; the finished model lies in {half_done}") from error
    return written


def _arguments(settings: TrainSettings, passes: Passes) -> TrainingArguments:
    per_epoch = math.ceil(math.ceil(passes.rows / settings.batch) / settings.accumulate)
    total = max(1, math.ceil(math.ceil(len(passes) / settings.batch) / settings.accumulate))
    every = min(total, settings.eval_every or math.ceil(per_epoch / LOOKS_PER_EPOCH))
    on_gpu = torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(settings.work),
        # What the Trainer takes for one epoch holds every pass, since each pass draws and sends its rows anew.
        num_train_epochs=1,
        per_device_train_batch_size=settings.batch,
        per_device_eval_batch_size=settings.batch,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=int(total * WARMUP),
        logging_steps=max(1, min(every, total // LOGS_PER_RUN)),
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        prediction_loss_only=True,
        restore_callback_states_from_checkpoint=True,
        include_num_input_tokens_seen="non_padding",
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=on_gpu,
        dataloader_num_workers=min(WORKERS, (os.cpu_count() or 1) // 3) if on_gpu else 0,
        bf16=precision() is torch.bfloat16,
        fp16=precision() is torch.float16,
        use_cpu=not on_gpu,
        seed=settings.seed,
        data_seed=settings.seed,
        report_to="none",
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        **_checkpointing(settings),
    )


def _checkpointing(settings: TrainSettings) -> dict[str, Any]:
    """Returns the arguments for recomputing activations, under the name that the installed transformers uses."""
    if not settings.gradient_checkpointing:
        return {}
    name = "activation" if "activation_checkpointing" in TrainingArguments.__dataclass_fields__ else "gradient"
    return {f"{name}_checkpointing": True, f"{name}_checkpointing_kwargs": {"use_reentrant": False}}


def _example(base: Base, details: LmDetails, view: PromptView, label: int, output_tokens: int) -> dict[str, list[int]]:
    limits = {"excerpt_chars": details.excerpt_chars, "side_chars": details.side_chars, "max_tokens": details.max_tokens}
    prompt = render(base.tokenizer, view, kind=details.kind, **limits)
    if details.tokens is None:
        return encoder_row(prompt, label, output_tokens)
    return causal_row(prompt, label, output_tokens, details.tokens)


def _max_tokens(base: Base, wanted: int) -> int:
    """Returns the number of positions of the base, less some for the answer."""
    positions = getattr(base.model.config, "max_position_embeddings", None) or wanted
    # RoBERTa and related models count positions from their padding id, so they have two fewer than stated.
    spare = 32 if base.kind == "causal" else 2
    return max(1, min(wanted, positions - spare))


def _also_to(path: Path, say: Say) -> Say:
    """Returns a function that prints a line and appends it to the run's log."""

    def tell(line: str) -> None:
        say(line)
        with path.open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    return tell
