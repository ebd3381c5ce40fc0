"""What an instance decodes: its tokens, the sequence-seconds that they took, and the batch meanwhile."""

from collections import deque

from hmas.controller.core.types import Request
from hmas.controller.scheduling.instances.running import Running, TokenSource

_SAMPLE_TOKENS = 8
"""Tokens that a sample of the pace needs: one read of a stream may bring several tokens at once, or part of one."""
_STREAMS = 16
"""The newest streams, whose least figure counts: an engine that puts several tokens into an event does so in every stream. Texts of some
languages have characters of several tokens, and so fewer events than tokens, beside texts that have not."""
_STREAMS_LEAST, _TOKENS_LEAST = 4, 32
"""So many streams, each of so many tokens, have to say it: short ones say little."""
_FASTER = 2.0
"""How much faster than its events an engine may have decoded what a stream does not show: fewer ran beside it then, say."""
_ONE_EACH = 1.02
"""Up to this many tokens, an event counts as one token."""


class DecodeTally:
    """Counts tokens and time of one instance's streaming requests. `source`: where tokens are counted, None if each is reported.

    The pace of their tokens is set against the batch: the sequences of the streams that decode, and of all requests in flight that do not
    stream. Those make the streams slower too, and nothing shows when they decode. A stream without a first token counts where the pace is
    read (`Instance.sequences`), since it will decode in a moment, but not here, where it does not decode yet. To count it here too gives up
    to 2 points fewer in `lab/benchmarks/guard_study.py` with tight targets, and from 4 fewer to 2 more with `--steep`.

    An event of a stream need not be one token: an engine that decodes speculatively, streams at intervals or falls behind puts several into
    one. How many is learned from streams that end with the engine's own count, of requests without tools.

    Attributes:
        decoded: Output tokens reported, without those of each request's first report. The instance adds to it, since a call for each token
            costs more.
        per_event: Tokens that an event has at least; exactly 1.0 where events are tokens.
        pinned: By request, `per_event` at the first event of each stream in flight for which it was not 1.0: a stream whose earlier events
            were counted anew would seem to have got many tokens at once.
    """

    __slots__ = (
        "_batch",
        "_batch_s",
        "_busy_s",
        "_decoding",
        "_per_event",
        "_prompt_tokens",
        "_sampled",
        "_seq_s",
        "_since_s",
        "_untimed_tokens",
        "decoded",
        "per_event",
        "pinned",
    )

    def __init__(self) -> None:
        self._batch = self._decoding = self.decoded = self._untimed_tokens = self._sampled = self._prompt_tokens = 0
        self._batch_s = self._seq_s = self._busy_s = self._since_s = 0.0
        self._per_event: deque[float] = deque(maxlen=_STREAMS)
        self.per_event = 1.0
        self.pinned: dict[str, float] = {}

    def sent(self, request: Request, now_s: float) -> None:
        """Records that a request is in flight."""
        if not request.stream:
            self._pass(now_s)
            self._batch += request.sequences

    def began(self, request: Request, now_s: float, events: int) -> None:
        """Records a request's first report, of so many events: its first, and those that were read together with it."""
        if self.per_event != 1.0:
            self.pinned[request.id] = self.per_event
        self._prompt_tokens += request.prompt_tokens
        self._pass(now_s)
        self._decoding += request.sequences
        if request.stream:
            self._batch += request.sequences
        # The time in which they were decoded is not known: counted with the time from now on, they would have taken none.
        first = max(1, self.tokens(request, events))
        self._untimed_tokens += first
        self.decoded -= first

    def tokens(self, request: Request, events: int) -> int:
        """The tokens of so many events of a stream."""
        return round(events * self.pinned.get(request.id, 1.0))

    def told(self, run: Running, tokens: int) -> None:
        """Learns from a stream that has ended, of which the engine says that it has so many tokens.

        A request with tools says nothing: an engine may send a call whole, or leave out what marks it. One token for each answer may be its
        stop token, which no event carries. If the other tokens without an event of their own may have been decoded before the first event,
        as reasoning that is not streamed, the stream says nothing of how many tokens an event carries.
        """
        request = run.entry.request
        events = round(run.tokens / self.pinned.get(request.id, 1.0))
        more = max(0, tokens - events - request.sequences)
        first_s = run.last_s if run.first_s is None else run.first_s
        unseen = more and more * (run.last_s - first_s) <= _FASTER * events * (first_s - run.dispatched_s)
        if unseen or request.has_tools or tokens < _TOKENS_LEAST * request.sequences:
            return
        self._per_event.append((events + more) / max(1, events))
        least = min(self._per_event)
        self.per_event = least if least > _ONE_EACH and len(self._per_event) >= _STREAMS_LEAST else 1.0

    def ended(self, request: Request, now_s: float, *, begun: bool) -> None:
        """Records that a request is no longer in flight. `begun`: it had a first report."""
        self._pass(now_s)
        self.pinned.pop(request.id, None)
        if begun:
            self._decoding -= request.sequences
        if begun or not request.stream:
            self._batch -= request.sequences

    def answered(self, request: Request, tokens: int) -> None:
        """Records a whole answer of so many tokens that comes at its end: produced all the same, but nothing is known of its pace."""
        self._prompt_tokens += request.prompt_tokens
        self._untimed_tokens += tokens

    @property
    def streams(self) -> bool:
        """Whether any stream decodes, which shows the pace."""
        return self._decoding > 0

    def sample(self, now_s: float, source: TokenSource | None) -> tuple[float, float, float] | None:
        """Milliseconds per output token, the mean number of sequences in the batch, and tokens per decoding one, since the last sample.

        The means are over the time in which any decoded. None with too few tokens.
        """
        self._pass(now_s)
        decoded = self._outputs(now_s, source) - self._untimed_tokens
        tokens = decoded - self._sampled
        if tokens < _SAMPLE_TOKENS:
            return None
        busy_s = self._busy_s or 1.0
        sample = (1000.0 * self._seq_s / tokens, self._batch_s / busy_s, tokens / max(1.0, self._seq_s / busy_s))
        self._sampled = decoded
        self._batch_s = self._seq_s = self._busy_s = 0.0
        return sample

    def produced(self, now_s: float, source: TokenSource | None) -> tuple[int, int]:
        """Prompt tokens computed and output tokens produced since the start, as far as they were reported."""
        return self._prompt_tokens, self._outputs(now_s, source)

    def _outputs(self, now_s: float, source: TokenSource | None) -> int:
        return self.decoded + self._untimed_tokens if source is None else source.generated(now_s)

    def _pass(self, now_s: float) -> None:
        if self._decoding:
            self._batch_s += self._batch * (now_s - self._since_s)
            self._seq_s += self._decoding * (now_s - self._since_s)
            self._busy_s += now_s - self._since_s
        self._since_s = now_s
