"""The two laws of the token budget, behind one interface: H-MAS's band error, and AugServe's free memory. Pure.

Both stay within the same envelope: never below a decode token for each request that may run plus room for prefill, so that one request is
always served, and never above the engine's own budget.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

BudgetLawName = Literal["band", "memory"]
GAIN = 0.5
"""Of the band law: share of the budget taken back per unit of error."""
RISE = 1.25
"""Largest factor by which a budget grows per action. `FALL`: smallest by which the band law's shrinks."""
FALL = 0.5
PREFILL_FLOOR = 0.5
"""Share of the engine's own budget that the band law always leaves for prefill."""
SAFETY = 0.05
"""Share of the KV cache that the memory law leaves free: G_safety of AugServe's Eq. 29."""
GAMMA = 1.0
"""Share of paused contexts that counts as free, as they may be evicted (Eq. 31)."""
BETA_LOW = 0.25
"""Least share of the engine's own budget that the memory law gives; its own budget is target_max, and beta_high is 1."""


@dataclass(frozen=True, slots=True)
class BudgetInputs:
    """What a law needs to know of one cycle.

    Attributes:
        error: Band error e_t.
        n_run: Window in force.
        ceiling: The engine's own budget, tokens per step, 1 or more.
        active_tokens: KV tokens of requests in flight: prompts and what they have produced.
        held_tokens: KV tokens that the engine holds in all, those of paused contexts too; None where it does not say.
        capacity_tokens: Tokens that its KV cache has room for; None where it does not say.
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
        budget: Tokens per step put out last, 0 before the first.
    """

    budget: int

    def update(self, seen: BudgetInputs) -> int:
        """One step: the budget to put out."""
        ...


@dataclass(slots=True)
class BandBudget:
    """Algorithm 2's inner loop: B = B_max (1 - gain e) for e above the band, B_max otherwise; rate limited both ways."""

    budget: int = 0

    def update(self, seen: BudgetInputs) -> int:
        """One step."""
        floor = min(seen.ceiling, seen.n_run + max(1, int(seen.ceiling * PREFILL_FLOOR)))
        wanted = seen.ceiling * (1.0 - GAIN * max(0.0, seen.error))
        last = self.budget or seen.ceiling
        limited = max(last * FALL, min(last * RISE + 1, wanted))
        self.budget = int(max(floor, min(seen.ceiling, limited)))
        return self.budget


@dataclass(slots=True)
class MemoryBudget:
    """AugServe's Eq. 27 to 32: a step takes no more tokens than there is KV memory for, within [beta_low, 1] of the engine's own budget.

    All in tokens, so the bytes per token M cancel out. What the engine holds beyond the requests in flight are paused contexts. It shrinks
    at once, as memory does not wait, and grows gently, as a budget that follows every block that is freed would swing with the batch.
    Where an engine does not tell its memory, its own budget stands.
    """

    budget: int = 0

    def update(self, seen: BudgetInputs) -> int:
        """One step."""
        floor = min(seen.ceiling, seen.n_run + max(1, int(seen.ceiling * BETA_LOW)))
        wanted = float(seen.ceiling)
        if seen.capacity_tokens is not None:
            active = max(0, seen.active_tokens)
            paused = max(0, (seen.held_tokens or 0) - active)
            free = seen.capacity_tokens * (1.0 - SAFETY) - active - paused
            wanted = free + GAMMA * paused
        last = self.budget or seen.ceiling
        self.budget = int(max(floor, min(seen.ceiling, last * RISE + 1, wanted)))
        return self.budget


LAWS: Mapping[BudgetLawName, Callable[[], BudgetLaw]] = {"band": BandBudget, "memory": MemoryBudget}
"""Every law by its name in `agents.statera_budget_law`."""
