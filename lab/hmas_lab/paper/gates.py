"""Admissions of two other serving systems, as far as they bear on goodput here: stand-ins in the simulation, built from their descriptions.

Both keep the queue's order strictly (the first that does not fit holds up the rest) and decide by KV memory alone. Neither models those
systems' kernels or prefix caches: under either, engines are the same as under every other arm.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hmas.controller.core.placement import Choice, InstanceState, Routable
from hmas.controller.core.types import OutcomeKind, Request
from hmas.controller.routing.least_loaded import LeastLoaded
from hmas.controller.scheduling.results import Ended
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.simulation import Periodic
from hmas.engines.sim.model import EngineModel
from hmas.planning.fleet import Fleet
from hmas_lab.paper.arms import Gate as GateName

LOOK_S = 0.25
"""How often it is looked up how far those in flight have come; a few decode steps."""
CLIP_TOKENS = 4096
"""SGLang counts no more than so many output tokens of a request that comes (`CLIP_MAX_NEW_TOKENS_ESTIMATION`)."""
RATIO_START, RATIO_LEAST, DECAY_STEPS = 0.7, 0.098, 600
"""SGLang's share of the output that is reserved for those in flight: it starts at 0.7 and sinks to 0.14 of that in 600 decode steps."""
RETRACT_STEPS = 20
"""Decode steps that SGLang makes room for when it has had to retract a request."""
HISTORY = 1000
"""Output lengths that the past-future scheduler goes by."""
RESERVED = 0.05
"""Share of memory that the past-future scheduler keeps free for what the past does not foretell: as much as the gateway's own fence."""


@dataclass(slots=True)
class Held:
    """A request in flight: prompt, cap on its output, output so far."""

    prompt: int
    cap: int
    got: int = 0


class MemoryGate(ABC):
    """Sends the queue's first request to the emptiest instance whose memory takes it; nobody passes one that has to wait."""

    def __init__(self, fleet: Fleet) -> None:
        self._capacity = {name: kind.profile.kv_capacity_tokens for name, kind in fleet.instances().items()}
        self._context = {name: kind.profile.max_model_len for name, kind in fleet.instances().items()}
        self.held: dict[str, dict[str, Held]] = {name: {} for name in self._capacity}
        self._instance: dict[str, str] = {}
        self._emptiest = LeastLoaded()
        self._blocked = ""

    def rank(self, entry: Routable, instances: Sequence[InstanceState], now_s: float) -> Iterator[Choice]:
        """As `Router`: the emptiest instance first, of those whose memory takes the request."""
        request = entry.request
        if self._blocked and request.id != self._blocked:
            return
        for choice in self._emptiest.rank(entry, instances, now_s):
            if not self.held[choice.instance] or self._fits(choice.instance, self._held_by(request, choice.instance)):
                yield choice
                return
        self._blocked = request.id

    def sent(self, entry: Routable, instance: str, now_s: float) -> None:  # noqa: ARG002 - part of the protocol
        """Books what the request may come to hold."""
        self._blocked = ""
        self.held[instance][entry.request.id] = self._held_by(entry.request, instance)
        self._instance[entry.request.id] = instance

    def controls(self) -> Sequence[Periodic]:
        """Looks up now and then how far those in flight have come."""
        return [Periodic(every_s=LOOK_S, run=self.look)]

    def look(self, now_s: float, _scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> None:
        """Takes over the output tokens that the engines have produced."""
        for name, engine in engines.items():
            held = self.held[name]
            for request_id, tokens in engine.tokens(now_s):
                one = held.get(request_id)
                if one is not None:
                    one.got = tokens

    def on_end(self, ended: Ended, now_s: float) -> None:  # noqa: ARG002 - part of the protocol
        """Frees what it held."""
        request_id = ended.entry.request.id
        self.held.get(self._instance.pop(request_id, ""), {}).pop(request_id, None)
        if self._blocked == request_id:
            self._blocked = ""

    def _held_by(self, request: Request, name: str) -> Held:
        return Held(request.prompt_tokens, self._cap(request, name))

    def _cap(self, request: Request, name: str) -> int:
        most = self._context[name] - request.prompt_tokens
        return max(1, most if request.max_output_tokens is None else min(request.max_output_tokens, most))

    def _fits(self, name: str, coming: Held) -> bool:
        held = self.held[name].values()
        certain = sum(one.prompt + one.cap for one in held) + coming.prompt + coming.cap
        return certain <= self._capacity[name] or self._takes(name, coming)

    @abstractmethod
    def _takes(self, name: str, coming: Held) -> bool:
        """Whether an instance takes a request though not all caps fit into it."""


class ConservativeGate(MemoryGate):
    """SGLang's: what is held, a decaying share of what those in flight may still ask for, and all that the new one may ask for, must fit.

    After a retraction the share jumps to what those in flight have had plus 20 steps, over their caps, and decays anew.
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.ratio = dict.fromkeys(self._capacity, RATIO_START)
        self._preempted = dict.fromkeys(self._capacity, 0)

    def look(self, now_s: float, scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> None:
        """Besides, lets the share decay by the steps made, and raises it after a preemption."""
        before = {name: dict.fromkeys(held, 0) | {key: one.got for key, one in held.items()} for name, held in self.held.items()}
        super().look(now_s, scheduler, engines)
        for name, engine in engines.items():
            held = self.held[name]
            steps = max((one.got - before[name].get(key, 0) for key, one in held.items()), default=0)
            ratio = self.ratio[name] - steps * (RATIO_START - RATIO_LEAST) / DECAY_STEPS
            preempted = engine.snapshot(name, now_s).preemptions_total
            if preempted > self._preempted[name]:
                ratio = min(1.0, (sum(one.got + RETRACT_STEPS for one in held.values())) / (sum(one.cap for one in held.values()) + 1))
            self._preempted[name] = preempted
            self.ratio[name] = max(RATIO_LEAST, ratio)

    def _takes(self, name: str, coming: Held) -> bool:
        ratio, held = self.ratio[name], self.held[name].values()
        reserved = sum(one.prompt + one.got + ratio * max(0, min(one.cap, CLIP_TOKENS) - one.got) for one in held)
        return reserved + coming.prompt + min(coming.cap, CLIP_TOKENS) <= self._capacity[name]


class PastFutureGate(MemoryGate):
    """LightLLM's past-future scheduler (Gong et al., ASPLOS 2025): the peak that memory is expected to reach must fit.

    What a request in flight will still produce is expected from the output lengths of late: the mean of those that are longer than what it
    has got. In the order in which they are then expected to end, latest first, each end is a candidate for the peak.
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._past: deque[int] = deque(maxlen=HISTORY)
        self._ordered: list[int] = []
        self._sums: list[int] = []

    def on_end(self, ended: Ended, now_s: float) -> None:
        """Besides, remembers how long its answer was."""
        super().on_end(ended, now_s)
        if ended.kind is OutcomeKind.COMPLETED:
            self._past.append(ended.output_tokens)

    def look(self, now_s: float, scheduler: Scheduler, engines: Mapping[str, EngineModel]) -> None:
        """Besides, puts the remembered lengths in order."""
        super().look(now_s, scheduler, engines)
        self._ordered = sorted(self._past)
        self._sums = list(accumulate(reversed(self._ordered)))[::-1]

    def expected(self, got: int, cap: int) -> float:
        """Output tokens still to come of one that has so many; without a longer one to go by, all that it may ask for."""
        place = bisect_right(self._ordered, got)
        longer = len(self._ordered) - place
        length = self._sums[place] / longer if longer else cap
        return max(1.0, min(float(cap), length) - got)

    def peak(self, requests: Sequence[Held]) -> float:
        """The most tokens that these are expected to hold at once."""
        left = sorted(((self.expected(one.got, one.cap), one.prompt + one.got) for one in requests), reverse=True)
        held, most = 0, 0.0
        for number, (coming, has) in enumerate(left, 1):
            held += has
            most = max(most, held + number * coming)
        return most

    def _takes(self, name: str, coming: Held) -> bool:
        return self.peak([*self.held[name].values(), coming]) <= self._capacity[name] * (1.0 - RESERVED)


GATES: Mapping[GateName, type[MemoryGate]] = {"conservative": ConservativeGate, "past-future": PastFutureGate}


def make_gate(name: GateName, fleet: Fleet) -> MemoryGate | None:
    """A new gate, None where an arm has none."""
    return GATES[name](fleet) if name else None
