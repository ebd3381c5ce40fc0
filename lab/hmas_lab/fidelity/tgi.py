"""The engine model behind the batching rule of text-generation-inference, for logs that were taken on that engine."""

from collections import deque

from hmas.engines.sim.decoding import DecodeGroup, Stretch
from hmas.engines.sim.profile import Profile
from hmas.engines.sim.request import SimRequest
from hmas_lab.fidelity.timed import TimedEngine

OVERTAKE_S = 1.0
"""Who came later than this after one that does not fit has to wait behind it."""

PATIENCE = 24.0
"""`max_waiting_tokens`, the default of IBM's text-generation-inference."""


def joins_from(running: int, since: int, patience: float) -> int:
    """How many have to wait before a running batch is interrupted for them.

    Args:
        running: Sequences that decode.
        since: Decode steps since the last prefill, plus one.
        patience: Steps after which one that waits is enough.
    """
    if running <= 1 or since >= patience:
        return 1
    return max(1, int(running * (1.0 - since / patience)))


class TgiEngine(TimedEngine):
    """`EngineModel` with another front door: requests wait outside until enough of them do, and their prompts get a step of their own.

    A batch that decodes is interrupted for new prompts once those that wait are a share of those that run, a share that falls with every
    step since the last interruption (`joins_from`). The prompts of all that join are computed in one step in which nobody decodes.
    A request joins only if its full length fits beside the full lengths of those that run (the engine's "batch weight"), so that nobody
    is ever preempted; those behind one that does not fit may pass it if they came within a second of it. All else - blocks, step times,
    stretches - is the base class's.

    Attributes:
        patience: As in `joins_from`.
        prompt_ms: What each prompt adds to its prefill step whatever its length: host work, which for short prompts passes their tokens'.
        splice_ms: What the first decode step after new prompts costs besides, since the engine joins two batches there.
    """

    def __init__(self, profile: Profile, *, prompt_ms: float = 0.0, splice_ms: float = 0.0, patience: float = PATIENCE) -> None:
        super().__init__(profile, token_budget=1 << 30)
        self.patience = patience
        self.prompt_ms = prompt_ms
        self.splice_ms = splice_ms
        self._outside: deque[SimRequest] = deque()
        self._booked: dict[str, int] = {}
        self._weight = 0
        self._since = 1
        self._last: Stretch | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait, in front of the door and behind it."""
        return len(self._outside) + super().waiting

    @property
    def idle(self) -> bool:
        """Whether there is nothing to step for."""
        return not self._outside and super().idle

    def add(self, request: SimRequest) -> None:
        """Lets a request wait outside; it joins when `joins_from` says so."""
        self._outside.append(request)
        stretch = self._stretch
        if stretch is not None and stretch.begun < stretch.steps:
            self._shorten(stretch)

    def abort(self, request_id: str) -> bool:
        """Drops a request at once; False where the engine does not have it."""
        for request in self._outside:
            if request.id == request_id:
                self._outside.remove(request)
                return True
        self._weight -= self._booked.pop(request_id, 0)
        return super().abort(request_id)

    def end(self) -> Stretch:
        """Ends the stretch, and gives back what those that have finished had booked."""
        stretch = super().end()
        for event in stretch.finished:
            self._weight -= self._booked.pop(event.id, 0)
        return stretch

    def _plan(self, now_s: float) -> Stretch | None:
        if self._last is not None:
            self._since += self._last.steps
        stretch = self._prefill(now_s)
        if stretch is None:
            stretch = super()._plan(now_s)
            if stretch is not None:
                self._shorten(stretch)
        self._last = stretch
        return stretch

    def _prefill(self, now_s: float) -> Stretch | None:
        """A step for the prompts of those that join; None where nobody does."""
        group = self.batch.group
        if not self._outside or len(self._outside) < joins_from(len(group), self._since, self.patience):
            return None
        joining = 0
        for request in self._joinable():
            self._outside.remove(request)
            super().add(request)
            joining += 1
        if not joining:
            return None
        # Planned with nobody decoding: those that run stand still for this step and find the newcomers beside them after it.
        self.batch.group = DecodeGroup(self.profile.block_size)
        self._hold_up(self.prompt_ms * joining)
        stretch = super()._plan(now_s)
        newcomers = self.batch.group.dissolve()
        self.batch.group = group
        for sequence in newcomers:
            group.join(sequence)
        if len(group):
            self._hold_up(self.splice_ms)
        # The step after this one counts as the second since the interruption.
        self._since = 0
        return stretch

    def _hold_up(self, ms: float) -> None:
        """Makes the step that is planned next last longer."""
        self.batch._pause_ms += ms  # noqa: SLF001 - as transfers between host and GPU do it

    def _joinable(self) -> list[SimRequest]:
        """Books and returns those that fit together now, in order."""
        chosen: list[SimRequest] = []
        until_s = float("inf")
        for request in self._outside:
            if request.arrival_s > until_s:
                break
            if self._fits(request):
                self._booked[request.id] = request.prompt_tokens + request.output_tokens
                self._weight += self._booked[request.id]
                chosen.append(request)
            else:
                until_s = min(until_s, request.arrival_s + OVERTAKE_S)
        return chosen

    def _fits(self, request: SimRequest) -> bool:
        weight = self._weight + request.prompt_tokens + request.output_tokens
        return not self._booked or (weight <= self.profile.kv_capacity_tokens and len(self._booked) < self.batch.n_run)

    def _shorten(self, stretch: Stretch) -> None:
        """Ends a stretch of decoding at the step after which those that wait are enough."""
        running = len(self.batch.group)
        if not self._outside or not any(self._fits(request) for request in self._outside):
            return
        for steps in range(max(1, stretch.begun), stretch.steps):
            if len(self._outside) >= joins_from(running, self._since + steps, self.patience):
                stretch.steps = steps
                return
