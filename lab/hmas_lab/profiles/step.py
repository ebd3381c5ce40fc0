"""What one step of an engine costs, kernel by kernel: every layer's GEMMs, attention, all-reduces and element-wise work, and the head."""

from hmas_lab.profiles.kernels import Kernels
from hmas_lab.profiles.models import ModelConfig

SAMPLER_BYTES = 40
"""Bytes moved per logit by sampling: to 32 bit, temperature, softmax, one random draw. Top-k and top-p sort and cost more."""


class StepCost:
    """Latencies in ms of the parts of a step; the instance's GPUs work in lockstep, so one GPU's time is the instance's.

    Args:
        model: The model.
        tp: GPUs it is split among.
        dtype: Of the layers' matrices; the output head stays in 16 bit.
        kernels: What its kernels cost.
    """

    def __init__(self, model: ModelConfig, tp: int, dtype: str, kernels: Kernels) -> None:
        self.model = model
        self.tp = tp
        self.dtype = dtype
        self.kernels = kernels

    def tokens_ms(self, tokens: int) -> float:
        """Everything that depends only on how many tokens a step has: all but attention and the output head."""
        model, kernels = self.model, self.kernels
        layer = self.matrices_ms(tokens)
        layer += sum(kernels.stream_ms(tokens * moved) for moved in self._streams())
        layer += 2 * kernels.all_reduce_ms(tokens * model.hidden_size)
        # Beside the layers: the embedding with its all-reduce and the last norm.
        beside = kernels.all_reduce_ms(tokens * model.hidden_size) + 2 * kernels.stream_ms(tokens * 4.0 * model.hidden_size)
        return model.num_hidden_layers * layer + beside

    def matrices_ms(self, tokens: int) -> float:
        """One layer's GEMMs: queries, keys and values in one, their way out, and the MLP or the experts."""
        model, tp, kernels = self.model, self.tp, self.kernels
        kv_size = model.kv_heads_per_gpu(tp) * model.head_dim
        ms = kernels.gemm_ms(tokens, model.q_size // tp + 2 * kv_size, model.hidden_size, self.dtype)
        ms += kernels.gemm_ms(tokens, model.hidden_size, model.q_size // tp, self.dtype)
        return ms + (self._experts_ms(tokens) if model.num_experts else self._mlp_ms(tokens))

    def head_ms(self, rows: int) -> float:
        """Output head, gathering of the logits and sampling for so many sequences."""
        model = self.model
        share = model.vocab_size // self.tp
        sampling = self.kernels.stream_ms(rows * float(SAMPLER_BYTES) * model.vocab_size)
        return self.kernels.gemm_ms(rows, share, model.hidden_size, "bfloat16") + self.kernels.all_reduce_ms(rows * share) + sampling

    def prefill_ms(self, prompts: int, tokens: int) -> float:
        """All layers' attention of whole prompts of so many tokens each."""
        return self.model.num_hidden_layers * self.kernels.prefill_ms(prompts, tokens)

    def decode_ms(self, seqs: int, tokens: int) -> float:
        """All layers' attention of so many sequences that decode over so many cached tokens each."""
        return self.model.num_hidden_layers * self.kernels.decode_ms(seqs, tokens)

    def touched_experts(self, tokens: float) -> float:
        """Experts of a layer that at least one of the tokens passes, expected where each token picks evenly."""
        model = self.model
        missed: float = (1.0 - model.num_experts_per_tok / model.num_experts) ** tokens
        return model.num_experts * (1.0 - missed)

    def _mlp_ms(self, tokens: float) -> float:
        model, inner = self.model, self.model.intermediate_size // self.tp
        up = self.kernels.gemm_ms(tokens, 2 * inner, model.hidden_size, self.dtype)
        return up + self.kernels.gemm_ms(tokens, model.hidden_size, inner, self.dtype)

    def _experts_ms(self, tokens: int) -> float:
        """Router and experts. The grouped GEMM counts as one GEMM that reads the touched experts' weights and does their operations."""
        model, inner = self.model, self.model.moe_intermediate_size // self.tp
        touched = self.touched_experts(tokens)
        rows = tokens * model.num_experts_per_tok / touched
        ms = self.kernels.gemm_ms(tokens, model.num_experts, model.hidden_size, "bfloat16")
        ms += self.kernels.gemm_ms(rows, round(touched * 2 * inner), model.hidden_size, self.dtype)
        return ms + self.kernels.gemm_ms(rows, round(touched * model.hidden_size), inner, self.dtype)

    def _streams(self) -> list[float]:
        """Bytes per token that each element-wise kernel of a layer reads and writes on one GPU, 16-bit values throughout."""
        model, tp = self.model, self.tp
        q_size, kv_size = model.q_size // tp, model.kv_heads_per_gpu(tp) * model.head_dim
        norm = 2.0 * 4 * model.hidden_size
        rotary = 2.0 * 2 * (q_size + kv_size)
        store = 2.0 * 2 * 2 * kv_size
        streams = [norm, norm, rotary, store]
        if model.normalises_qk:
            streams.append(rotary)
        if not model.num_experts:
            return [*streams, 2.0 * 3 * model.intermediate_size / tp]
        per_token = model.num_experts_per_tok
        routing = 2.0 * 2 * model.num_experts
        activation = 2.0 * 3 * model.moe_intermediate_size * per_token / tp
        gathering = 2.0 * (per_token + 1) * model.hidden_size
        return [*streams, routing, routing, activation, gathering]
