"""What one GPU's kernels cost: measured, or estimated from its data sheet."""

from typing import Protocol

from hmas.engines.errors import ProfileError
from hmas_lab.profiles.gpus import Gpu
from hmas_lab.profiles.models import BYTES, ModelConfig
from hmas_lab.profiles.tables import HEAD_DIM, Tables

STREAM_SHARE = 0.6
"""Share of the memory bandwidth that element-wise kernels reach; Vidur's measurements of such kernels show 0.3 to 0.6."""

KERNEL_MS = 0.004
"""What an element-wise kernel takes however small; Vidur's medians at 8 tokens are 0.002 to 0.007 ms on A100 and H100."""

PCIE_SHARE = 0.5
"""Share of two GPUs' measured all-reduce bandwidth that more GPUs on PCIe are granted: they share the path between two sockets."""


class Kernels(Protocol):
    """Latencies in ms on each GPU of an instance that runs one model in one dtype."""

    @property
    def note(self) -> str:
        """How the numbers came about, for the profile's `source`."""
        ...

    def gemm_ms(self, tokens: float, n: int, k: int, dtype: str) -> float:
        """`tokens` rows by an `n x k` matrix."""
        ...

    def prefill_ms(self, prompts: int, tokens: int) -> float:
        """One layer's causal attention of so many whole prompts of so many tokens each."""
        ...

    def decode_ms(self, seqs: int, tokens: int) -> float:
        """One layer's attention of so many sequences that decode one token over so many cached ones each."""
        ...

    def all_reduce_ms(self, elements: float) -> float:
        """All-reduce of so many 16-bit elements among the instance's GPUs; 0 on one."""
        ...

    def stream_ms(self, moved_bytes: float) -> float:
        """An element-wise kernel that reads and writes so many bytes."""
        ...

    def covers(self, *, prefill: bool, seqs: int, tokens: int) -> bool:
        """Whether such a step's attention lies within what the numbers stand on."""
        ...


def stream_ms(gpu: Gpu, moved_bytes: float) -> float:
    """An element-wise kernel, by the bytes it reads and writes."""
    return max(KERNEL_MS, 1e3 * moved_bytes / (STREAM_SHARE * gpu.bytes_per_s))


class MeasuredKernels:
    """Kernels from aiconfigurator's tables.

    Raises:
        ProfileError: The dtype or the head size was not measured on this GPU.
    """

    def __init__(self, model: ModelConfig, tp: int, dtype: str, gpu: Gpu, tables: Tables) -> None:
        if dtype not in tables.dtypes:
            raise ProfileError(
                f"{tables.gpu}: dtype {dtype!r} was not measured; allowed: {', '.join(tables.dtypes)}, or a data-sheet profile"
            )
        if model.head_dim != HEAD_DIM:
            raise ProfileError(
                f"model {model.name}: head_dim {model.head_dim}; attention was measured for {HEAD_DIM}; use a data-sheet profile"
            )
        self._gpu = gpu
        self._tables = tables
        self._tp = tp
        self._dtype = dtype
        heads, kv_heads = model.num_attention_heads // tp, model.kv_heads_per_gpu(tp)
        self._prefill = tables.prefill_sheet(heads, kv_heads)
        self._decode = tables.decode_sheet(heads, kv_heads)
        self._folds = self._decode.fold

    @property
    def note(self) -> str:
        """See `Kernels`."""
        text = (
            f"Composed from kernels measured one by one on {self._tables.gpu} by NVIDIA's aiconfigurator (Apache-2.0, vLLM 0.14.0 tables): "
            f"GEMMs, FlashAttention, all-reduce, interpolated in logarithms. Estimated: element-wise kernels, their bytes at "
            f"{STREAM_SHARE:.0%} of the bandwidth and {KERNEL_MS * 1e3:.0f} us at least."
        )
        spikes, all_gemms = self._tables.gemm_spikes(self._dtype)
        if spikes:
            text += (
                f" {spikes} of {all_gemms} GEMM measurements and a few of attention stand out from all their neighbours; what those imply "
                f"stands in for them."
            )
        if self._folds > 1:
            text += f" Estimated: decode attention, one sequence's KV heads taken as {self._folds} sequences'."
        if self._tp > 2 and not self._gpu.has_link:
            text += (
                f" Estimated: all-reduce among {self._tp} GPUs over PCIe, a ring at {PCIE_SHARE:.0%} of two GPUs' bandwidth where that is "
                f"faster than the measurement, which falls to 0.8 GB/s."
            )
        return text

    def gemm_ms(self, tokens: float, n: int, k: int, dtype: str) -> float:
        """See `Kernels`."""
        return self._tables.gemm_ms(dtype, tokens, n, k)

    def prefill_ms(self, prompts: int, tokens: int) -> float:
        """See `Kernels`."""
        return self._prefill.ms(prompts, tokens)

    def decode_ms(self, seqs: int, tokens: int) -> float:
        """See `Kernels`."""
        return self._decode.ms(seqs, tokens)

    def all_reduce_ms(self, elements: float) -> float:
        """See `Kernels`."""
        if self._tp == 1:
            return 0.0
        measured = self._tables.all_reduce_ms(self._tp, elements)
        if self._gpu.has_link or self._tp == 2:
            return measured
        # A ring sends each element 2 (n-1)/n times; among two GPUs once, so their time for a large message gives the link's speed.
        far = 1 << 28
        ms_per_element = self._tables.all_reduce_ms(2, far) / far / PCIE_SHARE
        return min(measured, self._tables.all_reduce_ms(self._tp, 1) + 2 * (self._tp - 1) / self._tp * elements * ms_per_element)

    def stream_ms(self, moved_bytes: float) -> float:
        """See `Kernels`."""
        return stream_ms(self._gpu, moved_bytes)

    def covers(self, *, prefill: bool, seqs: int, tokens: int) -> bool:
        """See `Kernels`."""
        return (self._prefill if prefill else self._decode).covers(seqs, tokens)


class DataSheetKernels:
    """A roofline: each kernel takes its operations or its bytes, whichever takes longer, at a share of the data sheet's rates.

    The shares are medians over the GPUs that were measured (`python -m hmas_lab.profiles shares`).
    """

    FLOP_SHARE = 0.8
    WEIGHT_SHARE = 0.75
    KV_SHARE = 0.78
    PAIR_SHARE = 0.47
    LINK_SHARE = 0.46
    LINK_MS = 0.02
    LAUNCH_MS = 0.008

    def __init__(self, model: ModelConfig, tp: int, dtype: str, gpu: Gpu) -> None:
        if not gpu.flop_per_s(dtype):
            raise ProfileError(f"dtype {dtype!r}: the GPU has no tensor-core rate for it; allowed: bfloat16")
        self._gpu = gpu
        self._tp = tp
        self._heads = model.num_attention_heads // tp
        self._kv_heads = model.kv_heads_per_gpu(tp)
        self._head_dim = model.head_dim

    @property
    def note(self) -> str:
        """See `Kernels`."""
        return (
            f"NOT MEASURED: a roofline from the data sheet. Each kernel takes its operations at {self.FLOP_SHARE:.0%} (attention "
            f"{self.PAIR_SHARE:.0%}) of the tensor-core rate or its bytes at {self.WEIGHT_SHARE:.0%} (KV {self.KV_SHARE:.0%}, element-wise "
            f"{STREAM_SHARE:.0%}) of the bandwidth, whichever is longer; shares as found on GPUs that were measured."
        )

    def gemm_ms(self, tokens: float, n: int, k: int, dtype: str) -> float:
        """See `Kernels`."""
        flops = 2.0 * tokens * n * k / (self.FLOP_SHARE * self._gpu.flop_per_s(dtype))
        moved = (n * k * BYTES[dtype] + 2.0 * tokens * (n + k)) / (self.WEIGHT_SHARE * self._gpu.bytes_per_s)
        return max(KERNEL_MS, 1e3 * max(flops, moved))

    def prefill_ms(self, prompts: int, tokens: int) -> float:
        """See `Kernels`."""
        pairs = prompts * tokens * (tokens + 1) / 2
        return self.LAUNCH_MS + 1e3 * 4.0 * pairs * self._heads * self._head_dim / (self.PAIR_SHARE * self._gpu.flop_per_s("bfloat16"))

    def decode_ms(self, seqs: int, tokens: int) -> float:
        """See `Kernels`."""
        moved = seqs * tokens * 2.0 * 2 * self._kv_heads * self._head_dim
        return self.LAUNCH_MS + 1e3 * moved / (self.KV_SHARE * self._gpu.bytes_per_s)

    def all_reduce_ms(self, elements: float) -> float:
        """See `Kernels`."""
        if self._tp == 1:
            return 0.0
        moved = 2.0 * (self._tp - 1) / self._tp * 2.0 * elements
        return self.LINK_MS + 1e3 * moved / (self.LINK_SHARE * self._gpu.link_bytes_per_s)

    def stream_ms(self, moved_bytes: float) -> float:
        """See `Kernels`."""
        return stream_ms(self._gpu, moved_bytes)

    def covers(self, *, prefill: bool, seqs: int, tokens: int) -> bool:
        """See `Kernels`: a formula holds everywhere."""
        return prefill or seqs * tokens > 0
