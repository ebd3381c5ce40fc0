"""The README beside a trained model: what it is, its training data, its figures, and how to serve it. Pure."""

from hmas.agents.model_store.card import ModelCard
from hmas.agents.perception.lm.details import ADAPTER, MERGED, LmDetails
from hmas.agents.perception.lm.settings import VLLM_RANKS

_LIMITS = (
    "Rows were held out by prompt, a like share of every source and no twin of a training row: on prompts of sources that were never seen "
    "expect less, and less again in languages and trades that the data do not have."
)


def model_card(card: ModelCard, details: LmDetails) -> str:
    """Returns the model card in Markdown."""
    parts = [
        "# Perception model",
        f"Tells which of the {len(details.tasks)} task types of H-MAS (Table 6) a prompt is"
        + (", and how long the answer will be" if "length" in card.metrics else "")
        + f". A {details.kind} model: {_weights(details)}.",
        "## Data",
        "\n".join(f"- `{name}`, sha256 `{digest}`" for name, digest in card.data_sha256.items()),
        "## Figures on held-out rows",
        _figures(card),
        _LIMITS,
        "## Made by",
        f"    {card.command or 'hmas train perception'}",
    ]
    if details.kind == "causal":
        parts += ["## Served by vLLM", _serving(details)]
    return "\n\n".join(parts) + "\n"


def _weights(details: LmDetails) -> str:
    if details.weights == MERGED:
        return f"whole weights in `{MERGED}/`, merged from `{details.base}`"
    return f"a LoRA adapter of rank {details.rank} in `{ADAPTER}/` for the base `{details.base}`"


def _figures(card: ModelCard) -> str:
    rows = []
    task, length = card.metrics.get("task"), card.metrics.get("length")
    if task:
        rows.append(
            f"- task type: accuracy {task['accuracy']:.3f} (the most frequent type: {task['majority_accuracy']:.3f}), "
            f"macro-F1 {task['macro_f1']:.3f}, expected calibration error {task['ece']:.3f}, on {task['rows']} rows"
        )
    if length:
        rows.append(
            f"- output length: pinball loss of the log {length['pinball_log']:.3f} "
            f"(quantiles of the training rows: {length['pinball_log_of_training_quantiles']:.3f}), on {length['rows']} rows"
        )
    return "\n".join(rows) or "- none: no rows were held out"


def _serving(details: LmDetails) -> str:
    if details.weights == MERGED:
        return f"    vllm serve THIS_FOLDER/{MERGED} --served-model-name perception"
    rank = next(rank for rank in VLLM_RANKS if rank >= details.rank)
    return f"    vllm serve {details.base} --enable-lora --max-lora-rank {rank} --lora-modules perception=THIS_FOLDER/{ADAPTER}"
