"""An engine whose steps take a random time, on a machine that other processes hold up, for the simulations beside it."""

import random
from statistics import fmean

import msgspec

from hmas.engines.sim.profile import Profile, load_profile

SIGMA = 0.25
RUN_STEPS = 8
"""Steps of which a run of decode steps has the mean factor. Runs last until a request comes or ends: with the factor of a single step an
engine would be twice as slow for ten seconds now and then, and most of all while nothing is sent to it."""
STALLS_PER_S, STALL_S = 0.5, (0.03, 0.12)
DICE = random.Random()


class Machine:
    """How much longer a machine takes for everything than at its best, by turns. Only time in which the engine works counts."""

    def __init__(self) -> None:
        self.start(0)

    def start(self, seed: int) -> None:
        """Starts anew, at its best."""
        self._dice, self._left_s, self.longer = random.Random(seed), 0.0, 1.0

    def work(self, seconds: float, phase_s: float, longer: float) -> None:
        """Works for so long; phases last `phase_s` in the mean, 0 for a single one, and every other one takes `longer` as long."""
        self._left_s -= seconds
        while phase_s and self._left_s <= 0.0:
            self.longer = longer if self.longer == 1.0 else 1.0
            self._left_s += self._dice.expovariate(1.0 / phase_s)


MACHINE = Machine()


class Noisy(Profile, frozen=True, kw_only=True):
    """A profile whose steps take a random factor of what they take in the mean.

    `held`, `held_s`, `longer`: as in `guard_study.BUSY`. `phase_s`, `slower`: as in `guard_study.PHASES`.
    """

    held: float = 0.0
    held_s: float = 0.0
    longer: float = 1.0
    phase_s: float = 0.0
    slower: float = 1.0

    def step_duration_s(
        self, *, prefill_tokens: int, prefill_pairs: int, decode_seqs: int, decode_kv_tokens: int, prefill_seqs: int = 0
    ) -> float:
        """See `Profile.step_duration_s`."""
        steady_s = super().step_duration_s(
            prefill_tokens=prefill_tokens,
            prefill_pairs=prefill_pairs,
            decode_seqs=decode_seqs,
            decode_kv_tokens=decode_kv_tokens,
            prefill_seqs=prefill_seqs,
        )
        took_s = (steady_s * self.longer * _factor() + _stall_s(steady_s) + self._held_s()) * MACHINE.longer
        MACHINE.work(took_s, self.phase_s, self.slower)
        return took_s

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """See `Profile.decode_line`; a run of steps has one factor, the mean of some."""
        base_ms, token_ms = super().decode_line(decode_seqs)
        factor = self.longer * fmean(_factor() for _ in range(RUN_STEPS)) * MACHINE.longer
        held_ms = 1000.0 * fmean(self._held_s() for _ in range(RUN_STEPS)) * MACHINE.longer
        MACHINE.work(RUN_STEPS * (base_ms * factor + held_ms) / 1000.0, self.phase_s, self.slower)
        return base_ms * factor + held_ms, token_ms * factor

    def _held_s(self) -> float:
        return DICE.expovariate(1.0 / self.held_s) if self.held and DICE.random() < self.held else 0.0


def _factor() -> float:
    return DICE.lognormvariate(-SIGMA * SIGMA / 2.0, SIGMA)


def _stall_s(step_s: float) -> float:
    return DICE.uniform(*STALL_S) if DICE.random() < STALLS_PER_S * step_s else 0.0


def noisy(**changed: float) -> Profile:
    """The demo's engine with noise and other figures."""
    return Noisy(**(msgspec.structs.asdict(load_profile("demo-small")) | changed))
