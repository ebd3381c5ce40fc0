"""How much KV cache an instance has: its memory less weights and what a step needs for itself."""

from hmas.engines.errors import ProfileError
from hmas_lab.profiles.gpus import Gpu
from hmas_lab.profiles.models import ModelConfig

UTILISATION = 0.9
"""Share of the memory that an engine takes, vLLM's default up to 0.14."""

RUNTIME_BYTES = 1_500_000_000
"""Per GPU: CUDA context, captured graphs, workspaces of the libraries."""

BLOCK_TOKENS = 16


def step_bytes(model: ModelConfig, tp: int, *, seqs: int, tokens: int) -> int:
    """Bytes that the largest step's own values take on one GPU: hidden states, the widest MLP's and the logits in 32 bit."""
    inner = model.moe_intermediate_size * model.num_experts_per_tok if model.num_experts else model.intermediate_size
    hidden = 2 * tokens * (4 * model.hidden_size + 3 * inner // tp)
    return hidden + seqs * model.vocab_size * (2 + 4 + 4) // tp


def kv_blocks(model: ModelConfig, gpu: Gpu, *, gpu_name: str, tp: int, dtype: str, seqs: int, tokens: int, utilisation: float) -> int:
    """Blocks of 16 tokens that the instance's KV cache holds.

    Args:
        model: The model.
        gpu: Its GPUs' data sheet.
        gpu_name: Their name, for errors.
        tp: How many GPUs.
        dtype: Of the weights.
        seqs: Sequences that may run at once.
        tokens: Tokens of the largest step.
        utilisation: Share of the memory that the engine takes.

    Raises:
        ProfileError: The weights do not fit, or leave no room for one block.
    """
    weights = model.weight_bytes(tp, dtype)
    memory = tp * gpu.memory_bytes
    if weights >= memory:
        raise ProfileError(
            f"model {model.name} on {tp} x {gpu_name}: weights of {weights / 1e9:.1f} GB; "
            f"allowed: less than the memory of {memory / 1e9:.1f} GB"
        )
    room = int(utilisation * memory) - weights - tp * (RUNTIME_BYTES + step_bytes(model, tp, seqs=seqs, tokens=tokens))
    blocks = room // (BLOCK_TOKENS * model.kv_bytes_per_token(tp))
    if blocks < 1:
        raise ProfileError(
            f"model {model.name} on {tp} x {gpu_name}: weights of {weights / 1e9:.1f} GB leave no room for KV in {utilisation:.0%} of "
            f"{memory / 1e9:.1f} GB; allowed: more or larger GPUs"
        )
    return blocks
