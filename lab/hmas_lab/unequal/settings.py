"""What the study on unequal engines does, in numbers."""

from typing import Annotated

import msgspec
from msgspec import Meta

from hmas.controller.routing.registry import DEFAULT_ROUTER
from hmas_lab.frontdoor.settings import VLLM, DoorSettings

FAST, SLOW = "fast", "slow"
"""Names of the engines."""
OURS = DEFAULT_ROUTER
ROUTERS = ("round-robin", "least-loaded", "latency-aware", OURS)
MODEL = "smollm2"
MAX_MODEL_LEN = 1024
DRAIN_S = 180.0
"""How long answers are waited for after the last arrival; an answer of 700 tokens takes that on the slow engine."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The study.

    Attributes:
        blocks: Each holds every router once at every load.
        seconds: Length of the arrivals of a run; what arrives in the first sixth is not scored.
        loads: Mean arrival rates over the capacity of both engines together.
        share: Of the time in which the slow engine may run.
        headroom: Least TPOT target over the TPOT of a request alone on the slow engine: it can serve a few requests in time, not many.
        retries: How often a run is repeated under which the machine stood still.
    """

    blocks: Annotated[int, Meta(ge=1, le=20)] = 5
    seconds: Annotated[float, Meta(ge=8, le=600)] = 60.0
    loads: tuple[float, ...] = (0.5, 0.9)
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.33
    headroom: Annotated[float, Meta(ge=1)] = 2.0
    retries: Annotated[int, Meta(ge=0, le=5)] = 2
    seed: int = 1

    @property
    def warmup_s(self) -> float:
        """What arrives before is not scored: the product has measured no speed yet."""
        return self.seconds / 6.0


def door_settings(settings: Settings) -> DoorSettings:
    """Requests as the front door's study has them on a real vLLM, but only chats of one, three and five messages, with short answers."""
    return msgspec.structs.replace(
        VLLM,
        engines=(),
        seed=settings.seed,
        forms=("chat-1", "chat-3", "chat-5"),
        seconds=settings.seconds,
        # Answers of hundreds of tokens take longer than a run here: no run would come to a steady state.
        cap=64,
        max_output=15,
        drain_s=DRAIN_S,
    )
