"""A real vLLM on a GPU as the engine of a comparison: a model of a real one's shape with random weights, which take as long to compute."""

import json
from typing import ClassVar

import aiohttp

from hmas.planning import StudyError
from hmas_lab.vllm_engine import VllmServer

SHAPES = {
    "8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "14b": {"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40},
    "32b": {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64},
}
"""What makes a SmolLM2, with its tokenizer and vocabulary, as large as a Qwen3 of that name: values of its config.json."""
HEADS = {"num_key_value_heads": 8, "head_dim": 128}
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
"""CUDA graphs of decode steps without torch.compile: an engine that is ready within a minute decodes as fast."""

ASKED_TOKENS = 12
"""Length of the one answer that shows whether the engine gives answers the length that it is told."""


class GpuServer(VllmServer, frozen=True, kw_only=True):
    """vLLM on a GPU. What is not named here stays at vLLM's default. The cache gets what the GPU has left.

    Attributes:
        shape: Of `SHAPES`.
        memory_share: Part of the GPU's memory that weights, cache and activations may take together.
    """

    shape: str = "14b"
    memory_share: float = 0.9
    max_model_len: int = 8192

    hardware_flags: ClassVar[tuple[str, ...]] = ()

    def hardware_options(self) -> dict[str, str]:
        """See `VllmServer.hardware_options`. `model` is the directory of SmolLM2; its weights are not read."""
        return {
            "--load-format": "dummy",
            "--hf-overrides": json.dumps(SHAPES[self.shape] | HEADS),
            "--dtype": "bfloat16",
            "--gpu-memory-utilization": str(self.memory_share),
            "--compilation-config": json.dumps(GRAPHS),
        }


async def check_lengths(engine: str, model: str) -> None:
    """Asks for one answer of a known length.

    Raises:
        StudyError: It has another length: the engine does not have `hmas_lab.forced_length`.
    """
    asked = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "vllm_xargs": {"hmas_output_tokens": ASKED_TOKENS}}
    async with aiohttp.ClientSession() as session, session.post(f"{engine}/v1/chat/completions", json=asked) as response:
        answer = await response.json()
    tokens = answer.get("usage", {}).get("completion_tokens")
    if tokens != ASKED_TOKENS:
        raise StudyError(f"the engine answered {tokens} tokens where {ASKED_TOKENS} were asked for: {str(answer)[:500]}")
