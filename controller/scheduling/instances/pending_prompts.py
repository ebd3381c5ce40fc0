"""The prompts that were sent to an instance, as far as they are not computed yet. Pure."""

from hmas.controller.scheduling.instances.running import Running


class PendingPrompts:
    """Prompts that an engine still has to compute. Only a stream shows when its prompt is: by its first token.

    Attributes:
        tokens: Their tokens that are not cached, with those of whole answers until they end.
        until_s: When the engine is expected to have computed all of them.
        recent: Whether prompts were under way since the last sample of the pace.
    """

    __slots__ = ("_awaiting", "_began_s", "recent", "tokens", "until_s")

    def __init__(self) -> None:
        self.tokens = 0
        self.until_s = 0.0
        self.recent = False
        self._began_s = 0.0
        self._awaiting: dict[str, Running] = {}

    def __len__(self) -> int:
        """Streams that have no first token yet."""
        return len(self._awaiting)

    @property
    def streamed_tokens(self) -> int:
        """Tokens that are not cached of the streams that have no first token yet. O(those)."""
        return sum([run.to_compute for run in self._awaiting.values()])

    def sent(self, run: Running, prefill_ms: float, now_s: float) -> None:
        """Adds the prompt of a request that is sent, which takes the engine so long."""
        run.alone = not self._awaiting
        for other in self._awaiting.values():
            other.alone = False
        if run.streams:
            self._awaiting[run.entry.request.id] = run
        self.recent = True
        self.until_s = max(now_s, self.until_s) + prefill_ms / 1000.0
        self.tokens += run.to_compute

    def began(self, run: Running, now_s: float) -> float | None:
        """Takes a prompt out, whose first token has come. None if it is not known here.

        Returns:
            Milliseconds that it took by itself: since its dispatch, or since the first token of the prompt before it.
        """
        self.tokens -= run.to_compute
        if self._awaiting.pop(run.entry.request.id, None) is None:
            return None
        if not self._awaiting:
            self.until_s = now_s
        own_ms = 1000.0 * (now_s - max(run.dispatched_s, self._began_s))
        self._began_s = now_s
        return own_ms

    def ended(self, run: Running, now_s: float, *, is_last: bool) -> None:
        """Takes the prompt of a request out that has ended without a first token, as whole answers do. `is_last`: no other is in flight."""
        if run.first_s is not None:
            return
        self.tokens -= run.to_compute
        self._awaiting.pop(run.entry.request.id, None)
        if is_last or (run.streams and not self._awaiting):
            self.until_s = now_s

    def sampled(self) -> None:
        """Records a sample of the pace."""
        self.recent = bool(self._awaiting)

    def left_ms(self, now_s: float) -> float:
        """How long they are expected to take from now on; 0 once all streams have their first token."""
        return 1000.0 * max(0.0, self.until_s - now_s)
