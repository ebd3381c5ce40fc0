"""The configurations that are compared, each started as a user starts it: by `hmas up`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.core.slo import BASE_SLO
from hmas.controller.core.types import TaskType
from hmas.planning import StudyError
from hmas_lab.as_it_comes import Stack, hmas_up
from hmas_lab.frontdoor.settings import PAPER, PASS, PLAIN, PRODUCT, STRONG, TARGETS

PASS_THROUGH: Mapping[str, Any] = MappingProxyType(
    {
        "agents": {"enabled": False},
        "scheduler": {
            "policy": "fcfs",
            "n_run": 256,
            "overdue": "keep",
            "fence": False,
            "late_service_share": 0.0,
            "late_confidence": 0.0,
            "tpot_guard": 0.0,
        },
    }
)
"""The gateway with nothing switched on: what arrives goes to an engine at once."""
WRONG_STARTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"from-fcfs": {"policy": "fcfs"}, "from-sjf": {"policy": "sjf"}, "from-window-4": {"n_run": 4}}
)
"""The product with a policy or a window configured that does not suit the load: settings of `scheduler` by arm."""


class Arm(NamedTuple):
    """A configuration: further options of `hmas up`, its configuration document, and the API key of each tenant if clients need one."""

    options: tuple[str, ...] = ()
    config: Mapping[str, Any] = MappingProxyType({})
    keys: Mapping[str, str] = MappingProxyType({})


def without(agent: str) -> str:
    """Name of the arm that leaves an agent out."""
    return f"without-{agent}"


def capped(cap: int, stretch: float) -> Arm:
    """First come first served with a fixed window, which refuses what can no longer have its first token in time.

    What it assumes of a request that declares no targets is what such a request is judged by. With tighter targets it would refuse requests
    that are still good.

    Args:
        cap: The window.
        stretch: Factor on all targets of the load, as `DoorLoad.stretch`.
    """
    slo = {
        "ttft_most_ms": TARGETS.ttft_ms * stretch,
        "scale": TARGETS.tpot_ms * stretch / BASE_SLO[TaskType.UNKNOWN].tpot_ms,
        "headroom": 0.0,
    }
    return Arm(config={**PASS_THROUGH, "slo": slo, "scheduler": {**PASS_THROUGH["scheduler"], "n_run": cap, "overdue": "shed"}})


def arm_names() -> list[str]:
    """The names that a measurement may be given."""
    return [PASS, PLAIN, PRODUCT, STRONG, PAPER, *WRONG_STARTS, *map(without, AGENT_NAMES)]


def arm_of(name: str) -> Arm:
    """An arm by its name; `STRONG` is not among them, because its window has to be found first (`capped`).

    Raises:
        StudyError: There is none of that name.
    """
    known = {PASS: Arm(config=PASS_THROUGH), PLAIN: Arm(("--no-agents",)), PRODUCT: Arm(), PAPER: Arm(("--preset", "paper"))}
    known |= {name: Arm(config={"scheduler": start}) for name, start in WRONG_STARTS.items()}
    for left_out in AGENT_NAMES:
        known[without(left_out)] = Arm(("--agents", ",".join(agent for agent in AGENT_NAMES if agent != left_out)))
    if name not in known:
        raise StudyError(f"arm {name!r}; allowed: {', '.join(known)}")
    return known[name]


def running_arm(arm: Arm, engines: Sequence[str], folder: Path) -> AbstractAsyncContextManager[Stack]:
    """A stack of this arm; see `hmas_up`."""
    return hmas_up(engines, folder, options=arm.options, config=arm.config, auth=bool(arm.keys))
