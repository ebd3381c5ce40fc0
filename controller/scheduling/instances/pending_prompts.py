"""The prompts that were sent to an instance, as far as they are not computed yet. Pure."""

from typing import NamedTuple

from hmas.controller.scheduling.instances.running import Running


class Computed(NamedTuple):
    """What a first token shows: `tokens` of prompts were computed in `ms`. The last step may have computed parts of `prompts` prompts."""

    ms: float
    tokens: int
    prompts: int


class PendingPrompts:
    """Prompts that an engine still has to compute. Only a stream shows when its prompt is: by its first token.

    Attributes:
        tokens: Their tokens that are not cached, with those of whole answers until they end.
        until_s: When the engine is expected to have computed all of them.
        recent: Whether prompts were under way since the last sample of the pace.
        streamed_tokens: As `tokens`, of the streams alone.
    """

    __slots__ = ("_awaiting", "_computed", "_since_s", "recent", "streamed_tokens", "tokens", "until_s")

    def __init__(self) -> None:
        self.tokens = 0
        self.until_s = 0.0
        self.recent = False
        self.streamed_tokens = 0
        self._since_s = 0.0
        # The last first token of a prompt that was not mostly cached, or the first dispatch after a pause. Then the prompts since: how
        # many, and their tokens.
        self._computed = (0, 0)
        self._awaiting: dict[str, Running] = {}

    def __len__(self) -> int:
        """Streams that have no first token yet."""
        return len(self._awaiting)

    def sent(self, run: Running, prefill_ms: float, now_s: float) -> None:
        """Adds the prompt of a request that is sent, which takes the engine so long."""
        run.alone = not self._awaiting
        for other in self._awaiting.values():
            other.alone = False
        if run.streams:
            if not self._awaiting:
                self._since_s, self._computed = now_s, (0, 0)
            self._awaiting[run.entry.request.id] = run
            self.streamed_tokens += run.to_compute
        self.recent = True
        self.until_s = max(now_s, self.until_s) + prefill_ms / 1000.0
        self.tokens += run.to_compute

    def began(self, run: Running, now_s: float) -> Computed | None:
        """Takes a prompt out, whose first token has come, and returns what it shows. None if it is not known here."""
        self.tokens -= run.to_compute
        if not self._out(run):
            return None
        if not self._awaiting:
            self.until_s = now_s
        prompts, tokens = self._computed[0] + 1, self._computed[1] + run.to_compute
        shown = Computed(1000.0 * (now_s - self._since_s), tokens, prompts + len(self._awaiting))
        self._computed = (prompts, tokens)
        if run.is_computed:
            self._since_s, self._computed = now_s, (0, 0)
        return shown

    def _out(self, run: Running) -> bool:
        """Whether the prompt is one of the streams', which is taken out then."""
        if self._awaiting.pop(run.entry.request.id, None) is None:
            return False
        self.streamed_tokens -= run.to_compute
        return True

    def ended(self, run: Running, now_s: float, *, is_last: bool) -> None:
        """Takes the prompt of a request out that has ended without a first token, as whole answers do. `is_last`: no other is in flight."""
        if run.first_s is not None:
            return
        self.tokens -= run.to_compute
        self._out(run)
        if is_last or (run.streams and not self._awaiting):
            self.until_s = now_s

    def sampled(self) -> None:
        """Records a sample of the pace."""
        self.recent = bool(self._awaiting)

    def left_ms(self, now_s: float) -> float:
        """How long they are expected to take from now on; 0 once all streams have their first token."""
        return 1000.0 * max(0.0, self.until_s - now_s)
