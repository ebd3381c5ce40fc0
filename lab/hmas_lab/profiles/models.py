"""What a decoder-only transformer computes and stores, read from its public config.json."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.engines.errors import ProfileError
from hmas.engines.model_shape import KvShape, kv_bytes_per_token, read_document, with_heads

Positive = Annotated[int, Meta(ge=1, le=1 << 31)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]

GATED = ("silu", "gelu_pytorch_tanh")
NOT_COVERED = {
    "kv_lora_rank": "multi-head latent attention",
    "n_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "shared experts",
    "first_k_dense_replace": "dense layers among the sparse ones",
    "mlp_only_layers": "dense layers among the sparse ones",
    "mamba_num_heads": "state-space layers",
}
"""Fields of config.json that, where set, mean a layer whose kernels are composed differently."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model's shape, in the names of Hugging Face's config.json.

    Every layer is attention with grouped KV heads and a gated MLP of three matrices, or `num_experts` such MLPs of which each token
    passes `num_experts_per_tok`.
    """

    name: str
    model_type: str = ""
    hidden_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    head_dim: Positive
    intermediate_size: Count = 0
    vocab_size: Positive
    max_position_embeddings: Positive
    tie_word_embeddings: bool = False
    num_experts: Count = 0
    num_experts_per_tok: Count = 0
    moe_intermediate_size: Count = 0

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def normalises_qk(self) -> bool:
        """Queries and keys pass an RMS norm of their own."""
        return self.model_type.startswith("qwen3")

    @property
    def expert_parameters(self) -> int:
        """Parameters of one layer's experts; 0 for a dense model."""
        return 3 * self.num_experts * self.hidden_size * self.moe_intermediate_size

    def kv_heads_per_gpu(self, tp: int) -> int:
        """KV heads that one of `tp` GPUs holds: its share; one, shared with other GPUs, if there are fewer heads than GPUs."""
        return max(1, self.num_key_value_heads // tp)

    def parameters(self) -> int:
        """All parameters of the model."""
        return self.num_hidden_layers * (self.layer_parameters(1) + self._norm_parameters) + self.table_parameters

    def layer_parameters(self, tp: int) -> int:
        """Parameters of one layer's matrices on `tp` GPUs together: KV heads that do not divide among them are stored more than once."""
        kv_size = self.kv_heads_per_gpu(tp) * tp * self.head_dim
        attention = self.hidden_size * (2 * self.q_size + 2 * kv_size)
        if self.num_experts:
            return attention + self.expert_parameters + self.hidden_size * self.num_experts
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def table_parameters(self) -> int:
        """Parameters of the embedding, of the output head where it is a matrix of its own, and of the last norm."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2) + self.hidden_size

    @property
    def _norm_parameters(self) -> int:
        return 2 * self.hidden_size + (2 * self.head_dim if self.normalises_qk else 0)

    def weight_bytes(self, tp: int, dtype: str) -> int:
        """Bytes of the weights on `tp` GPUs together; in fp8 the layers' matrices take one byte a parameter, everything else two."""
        layers = self.num_hidden_layers
        matrices = layers * self.layer_parameters(tp)
        return matrices * BYTES[dtype] + 2 * (self.table_parameters + layers * self._norm_parameters)

    def kv_bytes_per_token(self, tp: int) -> int:
        """Bytes of one token's keys and values (16 bit) on `tp` GPUs together."""
        shape = KvShape(
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
        )
        return kv_bytes_per_token(shape, tp=tp, dtype="bfloat16")


BYTES = {"bfloat16": 2, "fp8": 1}
"""Bytes per parameter of the layers' matrices, by dtype."""


def check_tp(model: ModelConfig, tp: int) -> None:
    """Checks that the model divides among `tp` GPUs.

    Raises:
        ProfileError: Names the field that does not divide.
    """
    kv = model.num_key_value_heads
    inner = model.moe_intermediate_size if model.num_experts else model.intermediate_size
    for field, value in (("num_attention_heads", model.num_attention_heads), ("intermediate size", inner)):
        if value % tp:
            raise ProfileError(f"model {model.name}: tp {tp} does not divide {field} {value}; allowed: a divisor")
    if kv % tp and tp % kv:
        raise ProfileError(f"model {model.name}: tp {tp} and num_key_value_heads {kv}; allowed: one divides the other")


def load_model(name_or_path: str) -> ModelConfig:
    """Reads a model's shape: one of datasets/models/ by its name, or any config.json by its path.

    Raises:
        ProfileError: It is not there, a field is missing or out of range, or the model has layers that are not covered.
    """
    document, origin = read_document(name_or_path)
    return parse_model(document, origin=origin)


def parse_model(document: dict[str, Any], *, origin: str) -> ModelConfig:
    """Checks a decoded config.json. `name` may be missing, as it is in published ones: then the folder's name stands in.

    Raises:
        ProfileError: Names the field, its value and what is allowed.
    """
    for field, what in NOT_COVERED.items():
        if document.get(field):
            raise ProfileError(
                f"model {origin}: {field} {document[field]!r} means {what}; allowed: attention and gated MLP or experts only"
            )
    kinds = set(document.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        raise ProfileError(f"model {origin}: layer_types has {', '.join(sorted(map(str, kinds)))}; allowed: full_attention only")
    if document.get("hidden_act", "silu") not in GATED:
        raise ProfileError(f"model {origin}: hidden_act {document['hidden_act']!r}; allowed: {', '.join(GATED)}, which gate the MLP")
    filled = with_heads(document)
    filled.setdefault("name", Path(origin).resolve().parent.name)
    if document.get("num_local_experts"):
        filled.setdefault("num_experts", document["num_local_experts"])
        filled.setdefault("moe_intermediate_size", document.get("intermediate_size"))
    try:
        model = msgspec.convert(filled, ModelConfig)
    except msgspec.ValidationError as error:
        raise ProfileError(f"model {origin}: {error}") from error
    if model.num_experts and not 1 <= model.num_experts_per_tok <= model.num_experts:
        raise ProfileError(
            f"model {origin}: num_experts_per_tok {model.num_experts_per_tok}; allowed: 1 to num_experts {model.num_experts}"
        )
    inner = "moe_intermediate_size" if model.num_experts else "intermediate_size"
    if not getattr(model, inner):
        raise ProfileError(f"model {origin}: {inner} 0; allowed: 1 or more")
    if model.num_attention_heads % model.num_key_value_heads:
        raise ProfileError(
            f"model {origin}: num_key_value_heads {model.num_key_value_heads}; "
            f"allowed: a divisor of num_attention_heads {model.num_attention_heads}"
        )
    return model
