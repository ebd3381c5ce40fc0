"""Laws of the token budget, behind one interface: H-MAS's band error and AugServe's free memory. Pure.

Both stay within the same envelope: at least one decode token for each request that may run plus room for prefill, so that one request is
always served; and at most the engine's own budget.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from hmas.controller.core.errors import ConfigError

GAIN = 0.5
"""Gain of the band law: share of the budget taken back per unit of error."""
RISE = 1.25
"""Largest factor by which a budget grows per action. `FALL`: smallest factor by which the band law shrinks it."""
FALL = 0.5
PREFILL_FLOOR = 0.5
"""Share of the engine's own budget that the band law always leaves for prefill."""
SAFETY = 0.05
"""Share of the KV cache that the memory law leaves free: G_safety of AugServe's Eq. 29."""
GAMMA = 1.0
"""Share of paused contexts that counts as free, because they may be evicted (Eq. 31)."""
BETA_LOW = 0.25
"""Smallest share of the engine's own budget that the memory law gives; target_max is the engine's own budget, and beta_high is 1."""


@dataclass(frozen=True, slots=True)
class BudgetInputs:
    """The input of a law for one cycle.

    Attributes:
        error: Band error e_t.
        n_run: The active window.
        ceiling: The engine's own budget, tokens per step, 1 or more.
        active_tokens: KV tokens of requests in flight: prompts and generated tokens.
        held_tokens: KV tokens that the engine holds in all, including paused contexts; None if not reported.
        capacity_tokens: Capacity of its KV cache in tokens; None if not reported.
    """

    error: float
    n_run: int
    ceiling: int
    active_tokens: int = 0
    held_tokens: int | None = None
    capacity_tokens: int | None = None


class BudgetLaw(Protocol):
    """Sets an instance's token budget.

    Attributes:
        budget: The last output in tokens per step; 0 before the first.
    """

    budget: int

    def update(self, seen: BudgetInputs) -> int:
        """Runs one step and returns the new budget."""
        ...


@dataclass(slots=True)
class BandBudget:
    """Algorithm 2's inner loop: B = B_max (1 - gain e) for e above the band, B_max otherwise; rate limited both ways."""

    budget: int = 0

    def update(self, seen: BudgetInputs) -> int:
        """Runs one step and returns the new budget."""
        floor = min(seen.ceiling, seen.n_run + max(1, int(seen.ceiling * PREFILL_FLOOR)))
        wanted = seen.ceiling * (1.0 - GAIN * max(0.0, seen.error))
        last = self.budget or seen.ceiling
        limited = max(last * FALL, min(last * RISE + 1, wanted))
        self.budget = int(max(floor, min(seen.ceiling, limited)))
        return self.budget


@dataclass(slots=True)
class MemoryBudget:
    """AugServe's Eq. 27 to 32: a step takes no more tokens than there is KV memory for, within [beta_low, 1] of the engine's own budget.

    All quantities are in tokens, so the bytes per token M cancel out. What the engine holds beyond the requests in flight counts as paused
    contexts. The budget shrinks at once, because memory does not wait. It grows slowly, because a budget that follows every freed block
    would swing with the batch. If an engine does not report its memory, its own budget applies.
    """

    budget: int = 0

    def update(self, seen: BudgetInputs) -> int:
        """Runs one step and returns the new budget."""
        floor = min(seen.ceiling, seen.n_run + max(1, int(seen.ceiling * BETA_LOW)))
        wanted = float(seen.ceiling)
        if seen.capacity_tokens is not None:
            # Requests that share a cached prompt hold it once: together no more than the engine holds.
            active = max(0, seen.active_tokens if seen.held_tokens is None else min(seen.active_tokens, seen.held_tokens))
            paused = max(0, (seen.held_tokens or 0) - active)
            free = seen.capacity_tokens * (1.0 - SAFETY) - active - paused
            wanted = free + GAMMA * paused
        last = self.budget or seen.ceiling
        self.budget = int(max(floor, min(seen.ceiling, last * RISE + 1, wanted)))
        return self.budget


LAWS: dict[str, Callable[[], BudgetLaw]] = {"band": BandBudget, "memory": MemoryBudget}
"""What makes a law, by its name in `agents.statera_budget_law`: the built-in ones, then those of plugins."""
TRIALS = (
    BudgetInputs(error=3.0, n_run=8, ceiling=2048, active_tokens=90_000, held_tokens=99_000, capacity_tokens=100_000),
    BudgetInputs(error=-1.0, n_run=4096, ceiling=512),
    BudgetInputs(error=0.0, n_run=1, ceiling=1, capacity_tokens=0),
)
"""Inputs on which a plugin's law is tried."""


def add_law(name: str, law: Any) -> None:
    """Adds a plugin's law.

    Raises:
        ConfigError: It does not make laws, or a budget of it does not serve one request or is above the engine's own.
    """
    made = law()
    if not callable(getattr(made, "update", None)) or not hasattr(made, "budget"):
        raise ConfigError(f"{law!r} makes no budget law; allowed: what hmas.agents.statera.budgets.BudgetLaw describes")
    for seen in TRIALS:
        least, budget = min(seen.ceiling, seen.n_run + 1), made.update(seen)
        if not least <= budget <= seen.ceiling:
            raise ConfigError(f"{law!r} answers {seen} with {budget!r} tokens; allowed: {least} to {seen.ceiling}")
    LAWS[name] = law
