"""The cluster of HeteroServe 4.1 as profiles: 2 H100, 4 A100 and 2 L40S, each with its own engine of a 13B model."""

import math
from dataclasses import dataclass

from hmas.engines.sim.profile import Profile
from hmas_lab.hetero.routers import Capability

WEIGHT_GB = 26.0
"""W_model: 13B parameters in bfloat16 (4.1)."""
LAYERS, HEADS, HEAD_SIZE = 40, 40, 128
"""Of Llama 13B, without grouped queries; the paper names the size only."""
KV_BYTES_PER_TOKEN = 2 * LAYERS * HEADS * HEAD_SIZE * 2
"""Eq. 1 for one token in bfloat16: 0.82 MB."""
GFLOP_PER_TOKEN = 31.2
"""C_eff of Table 4: the A100's 312 TFLOP/s then prefill 10,000 tokens/s."""
MARGIN = 0.1
"""delta of Eq. 4 and 6 (4.1)."""
BLOCK = 16
MODEL = "llama-13b"
MAX_MODEL_LEN = 16_384
"""More than any request of the workload has."""
STEP_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of device as 4.1 states it.

    Attributes:
        sheet: Peak TFLOP/s, memory in GB, bandwidth in TB/s.
        kv_gb: What is left for the KV cache by the paper's own figures (54 GB, and 22 GB on the L40S).
        count: How many the cluster has.
    """

    name: str
    sheet: Capability
    kv_gb: float
    count: int

    @property
    def prefill_tokens_per_s(self) -> float:
        """Table 4's roofline T = F / C_eff."""
        return self.sheet.tflops * 1e3 / GFLOP_PER_TOKEN

    def batch(self, context_tokens: float) -> int:
        """B_max of Eq. 6: sequences of so many tokens that fit at once, 1 or more."""
        room_gb = (1.0 - MARGIN) * self.sheet.memory_gb - WEIGHT_GB
        return max(1, math.floor(room_gb * 1e9 / (KV_BYTES_PER_TOKEN * context_tokens)))


GPUS = (
    Gpu("H100", Capability(tflops=989.0, memory_gb=80.0, bandwidth_tb_s=3.35), kv_gb=54.0, count=2),
    Gpu("A100", Capability(tflops=312.0, memory_gb=80.0, bandwidth_tb_s=2.0), kv_gb=54.0, count=4),
    Gpu("L40S", Capability(tflops=362.0, memory_gb=48.0, bandwidth_tb_s=0.864), kv_gb=22.0, count=2),
)
EVICTION_GB_PER_S = 0.5
"""The eviction penalty of 4.1: 2,000 ms for each GB that is swapped."""


def cluster(devices: int) -> dict[str, Gpu]:
    """The devices by instance name, H100 to A100 to L40S as 1 to 2 to 1 (4.7); `devices` is a multiple of 4."""
    eighths = devices / sum(gpu.count for gpu in GPUS)
    return {f"{gpu.name}-{number + 1:03d}": gpu for gpu in GPUS for number in range(int(gpu.count * eighths))}


def profile_of(gpu: Gpu, batch: int) -> Profile:
    """The device's roofline as a profile.

    A step takes the longer of reading the weights (`WEIGHT_GB` over the bandwidth) and computing its tokens (C_eff over the
    peak rate), plus reading the cached tokens of those that decode. The paper gives prefill in numbers (Table 4) and for
    decode the model of Pope et al.: bound by what is read. Attention's own arithmetic is in C_eff.

    Args:
        gpu: The kind.
        batch: Sequences that may run at once.
    """
    weights_ms = WEIGHT_GB / gpu.sheet.bandwidth_tb_s
    token_ms = 1e3 / gpu.prefill_tokens_per_s
    knee = math.ceil(weights_ms / token_ms)
    return Profile(
        name=f"heteroserve-{gpu.name.lower()}",
        gpu=gpu.name,
        model=MODEL,
        source="Roofline from the data-sheet figures in HeteroServe 4.1 and the compute per token of its Table 4; not a measurement.",
        step_ms=0.0,
        token_curve=((0, weights_ms), (knee, weights_ms), (knee + STEP_TOKENS, weights_ms + token_ms * STEP_TOKENS)),
        prefill_ms_per_token=0.0,
        prefill_ms_per_ktoken_sq=0.0,
        decode_ms_per_seq=0.0,
        decode_ms_per_kv_ktoken=KV_BYTES_PER_TOKEN * 1e-6 / gpu.sheet.bandwidth_tb_s,
        block_size=BLOCK,
        swap_gb_per_s=EVICTION_GB_PER_S,
        kv_blocks=int(gpu.kv_gb * 1e9 / (KV_BYTES_PER_TOKEN * BLOCK)),
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        memory_bytes=int(gpu.sheet.memory_gb * 1e9),
        weight_bytes=int(WEIGHT_GB * 1e9),
        max_num_seqs=batch,
        max_num_batched_tokens=STEP_TOKENS,
        max_model_len=MAX_MODEL_LEN,
    )
