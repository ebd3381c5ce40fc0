"""What statera keeps of one instance."""

import math
from dataclasses import dataclass, field

from hmas.agents.statera.budgets import BandBudget, BudgetLaw
from hmas.agents.statera.guard_factor import GuardFactorController
from hmas.agents.statera.loops import WindowLoop
from hmas.agents.statera.recent_misses import InstanceMisses
from hmas.agents.statera.target import SafeConcurrency, Target
from hmas.agents.statera.tpot_model import TpotModel
from hmas.controller.core.messages import Completion

Reasons = tuple[str, str, str]
"""Why window, token budget and guard factor have their values."""


@dataclass(slots=True)
class InstanceController:
    """The control state of one instance: its model, its loops, and the last action with the reason of the last change of each value.

    Attributes:
        tpot_missed: Share of TPOT misses among the requests that ended on it recently, see `InstanceMisses`.
        ttft_missed: See `ModelMisses`.
    """

    loop: WindowLoop
    budget: BudgetLaw = field(default_factory=BandBudget)
    plant: TpotModel = field(default_factory=TpotModel)
    headroom: SafeConcurrency = field(default_factory=SafeConcurrency)
    guard_factors: GuardFactorController = field(default_factory=GuardFactorController)
    misses: InstanceMisses = field(default_factory=InstanceMisses)
    tpot_missed: float = 0.0
    ttft_missed: float = 0.0
    target: Target | None = None
    updated_s: float = float("-inf")
    pressed_s: float = float("-inf")
    sent_s: float = float("-inf")
    missed_s: float = math.inf
    sent: tuple[int, int, float] = (0, 0, 1.0)
    why: Reasons = ("", "", "")
    started: bool = False
    tuned: bool = False

    def begin_anew(self, n_run: int) -> None:
        """Drops what was measured of another model that the instance has served, and begins with this window."""
        self.guard_factors, self.misses = GuardFactorController(), InstanceMisses()
        self.headroom.forget()
        self.loop.track(n_run)
        self.target, self.missed_s = None, math.inf

    def learn(self, completion: Completion) -> None:
        """Takes a request that ended on the instance."""
        self.plant.learn(completion)
        self.guard_factors.learn(completion)
        self.misses.learn(completion)
