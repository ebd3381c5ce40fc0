"""Opens a Hugging Face base of either kind and fits an adapter to it. Needs the extra `train`; import it where it is used."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from hmas.agents.perception.lm.answers import BINS
from hmas.agents.perception.reading import TASKS
from hmas.controller.core.errors import ConfigError, ModelError

CHOICES = len(TASKS) + BINS
"""Outputs of an encoder's head: the tasks, then the length bins."""

_DECODER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_TARGETS = MappingProxyType(
    {
        **dict.fromkeys(
            ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "olmo", "olmo2", "smollm3", "granite", "starcoder2"), _DECODER
        ),
        # Few rows hardly train the many experts, and engines serve adapters on attention for these models.
        **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe"), _ATTENTION),
    }
)
"""Modules that get an adapter, by `model_type`; all linear layers (the best choice in QLoRA) for every other type."""


@dataclass(frozen=True, slots=True)
class Base:
    """An opened base.

    Attributes:
        fresh: Modules without weights in the base (an encoder's head): they are trained in full and stored with the adapter.
    """

    kind: str
    model_type: str
    model: Any
    tokenizer: Any
    fresh: tuple[str, ...] = ()


def fingerprint(folder: Path) -> str:
    """Returns an identifier of a base without reading its weights: the config's content, names and sizes of the weight files.

    Raises:
        ConfigError: There is no config.json, or no weights.
    """
    digest = hashlib.sha256()
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}; allowed: the config of a Hugging Face model") from error
    # This field changes when another version saves the same weights again.
    config.pop("transformers_version", None)
    digest.update(json.dumps(config, sort_keys=True).encode())
    weights = sorted(path for pattern in ("*.safetensors", "*.bin") for path in folder.glob(pattern))
    if not weights:
        raise ConfigError(f"base is {folder}, which has no weights; allowed: a folder with *.safetensors or *.bin files")
    for path in weights:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


def kind_of(folder: Path, wanted: str = "auto") -> str:
    """Returns `causal` or `encoder`, by the config's architecture unless `wanted` determines it.

    Raises:
        ConfigError: transformers has no model of that kind for the base's model_type.
    """
    config = _config(folder)
    names = " ".join(config.architectures or ())
    known = {
        "causal": config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "encoder": config.model_type in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    }
    if wanted != "auto":
        kind = wanted
    elif "CausalLM" in names or "LMHead" in names or not known["encoder"]:
        kind = "causal"
    elif known["causal"] and names.endswith("Model"):
        # A bare decoder (Qwen3Model) and a bare encoder (BertModel) both end in Model; a decoder attends to the past only.
        kind = "causal" if getattr(config, "num_key_value_heads", None) is not None else "encoder"
    else:
        kind = "encoder"
    if not known[kind]:
        raise ConfigError(
            f"base {folder}: model_type {config.model_type!r} has no {kind} model in transformers; allowed: {_allowed(known)}"
        )
    return kind


def open_base(folder: Path, kind: str, *, dtype: torch.dtype) -> Base:
    """Loads tokenizer and weights from local files only; never runs code that lies beside them.

    Raises:
        ConfigError: The files are not those of such a model.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        fresh: tuple[str, ...] = ()
        if kind == "causal":
            model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype)
        else:
            model, info = AutoModelForSequenceClassification.from_pretrained(
                folder, local_files_only=True, dtype=dtype, num_labels=CHOICES, ignore_mismatched_sizes=True, output_loading_info=True
            )
            missing = [*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])]
            fresh = tuple(sorted({key.rpartition(".")[0] for key in missing}))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"base {folder} cannot be loaded as {kind}: {error}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if tokenizer.pad_token_id is None:
        raise ConfigError(f"base {folder}: its tokenizer has neither pad_token nor eos_token; allowed: a tokenizer with one of them")
    model.config.pad_token_id = tokenizer.pad_token_id
    return Base(kind=kind, model_type=model.config.model_type, model=model, tokenizer=tokenizer, fresh=fresh)


def with_adapter(base: Base, *, rank: int, alpha: int, dropout: float, targets: str) -> Any:
    """Returns the base with a new LoRA adapter, all else frozen; with rank 0 the base itself, all of it to be trained.

    Raises:
        ConfigError: The base has none of the named modules.
    """
    if not rank:
        return base.model
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=chosen_targets(base.model_type, targets),
        exclude_modules=list(base.fresh) or None,
        modules_to_save=list(base.fresh) or None,
        bias="none",
        task_type="CAUSAL_LM" if base.kind == "causal" else None,
    )
    try:
        return get_peft_model(base.model, config)
    except ValueError as error:
        linear = sorted({name.rpartition(".")[2] for name, part in base.model.named_modules() if isinstance(part, torch.nn.Linear)})
        raise ConfigError(f"targets is {targets!r}: {error}; allowed: auto, all-linear, or of {', '.join(linear)}") from error


def chosen_targets(model_type: str, targets: str) -> str | list[str]:
    """Returns the names of the modules that get an adapter."""
    if targets == "auto":
        return list(_TARGETS.get(model_type, ())) or "all-linear"
    return targets if targets == "all-linear" else [name.strip() for name in targets.split(",") if name.strip()]


def read_adapter(base: Base, folder: Path) -> Any:
    """Returns the base with a stored adapter, for inference only.

    Raises:
        ModelError: The adapter is missing or belongs to another base.
    """
    try:
        return PeftModel.from_pretrained(base.model, folder, is_trainable=False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"{folder}: {error}") from error


def _config(folder: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"base {folder}: {error}") from error


def _allowed(known: dict[str, bool]) -> str:
    return ", ".join(kind for kind, there in known.items() if there) or "a base that transformers knows as causal or for classification"
