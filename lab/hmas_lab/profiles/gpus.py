"""Data-sheet facts of GPUs."""

from importlib import resources
from typing import Annotated

import msgspec
from msgspec import Meta

from hmas.engines.errors import ProfileError

Rate = Annotated[float, Meta(gt=0)]

SHORT = {"a100_sxm": "a100", "h100_sxm": "h100", "h200_sxm": "h200"}
"""Names of GPUs in the names of profiles, where they differ."""

GIB = 1 << 30


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU as its data sheet has it.

    Attributes:
        memory_bytes: Size of its memory.
        bytes_per_s: Bandwidth of that memory.
        bf16_flop_per_s: Dense tensor-core rate; `fp8_flop_per_s` likewise, 0 where it has no fp8.
        link_bytes_per_s: To the other GPUs of the machine, one direction.
        host_bytes_per_s: To the host's memory, one direction.
    """

    memory_bytes: Annotated[int, Meta(ge=1)]
    bytes_per_s: Rate
    bf16_flop_per_s: Rate
    fp8_flop_per_s: Annotated[float, Meta(ge=0)]
    link_bytes_per_s: Rate
    host_bytes_per_s: Rate

    @property
    def has_link(self) -> bool:
        """GPUs talk over a link of their own, not over PCIe."""
        return self.link_bytes_per_s > self.host_bytes_per_s

    def flop_per_s(self, dtype: str) -> float:
        """Dense tensor-core rate for a dtype."""
        return self.fp8_flop_per_s if dtype == "fp8" else self.bf16_flop_per_s

    def engine_limits(self, name: str) -> tuple[int, int]:
        """The (`max_num_seqs`, `max_num_batched_tokens`) that vLLM's API server starts with on this GPU (vLLM 0.14, EngineArgs)."""
        large = self.memory_bytes >= 70 * GIB and "a100" not in name
        return (1024, 8192) if large else (256, 2048)


def load_gpus() -> dict[str, Gpu]:
    """All GPUs whose data sheet is known, by name."""
    data = (resources.files("hmas_lab.profiles") / "gpus.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, Gpu])


def load_gpu(name: str) -> Gpu:
    """One GPU's data sheet.

    Raises:
        ProfileError: The name is unknown.
    """
    gpus = load_gpus()
    if name not in gpus:
        raise ProfileError(f"gpu {name!r} is unknown; allowed: {', '.join(sorted(gpus))}")
    return gpus[name]
