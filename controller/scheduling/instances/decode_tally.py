"""What an instance decodes: its tokens, the sequence-seconds that they took, and the batch meanwhile."""

from hmas.controller.core.types import Request
from hmas.controller.scheduling.instances.running import TokenSource

_SAMPLE_TOKENS = 8
"""Tokens that a sample of the pace needs: one read of a stream may bring several tokens at once, or part of one."""


class DecodeTally:
    """Counts tokens and time of one instance's streaming requests. `source`: where tokens are counted, None if each is reported.

    The pace of their tokens is set against the batch: the sequences of the streams that decode, and of all requests in flight that do not
    stream. Those make the streams slower too, and nothing shows when they decode. A stream without a first token counts where the pace is
    read (`Instance.sequences`), since it will decode in a moment, but not here, where it does not decode yet. To count it here too gives up
    to 2 points fewer in `lab/benchmarks/guard_study.py` with tight targets, and from 4 fewer to 2 more with `--steep`.

    Attributes:
        decoded: Output tokens reported, without those of each request's first report. The instance adds to it, since a call for each token
            costs more.
    """

    __slots__ = (
        "_batch",
        "_batch_s",
        "_busy_s",
        "_decoding",
        "_prompt_tokens",
        "_sampled",
        "_seq_s",
        "_since_s",
        "_untimed_tokens",
        "decoded",
    )

    def __init__(self) -> None:
        self._batch = self._decoding = self.decoded = self._untimed_tokens = self._sampled = self._prompt_tokens = 0
        self._batch_s = self._seq_s = self._busy_s = self._since_s = 0.0

    def sent(self, request: Request, now_s: float) -> None:
        """Records that a request is in flight."""
        if not request.stream:
            self._pass(now_s)
            self._batch += request.sequences

    def began(self, request: Request, now_s: float, tokens: int) -> None:
        """Records a request's first report, of so many tokens: its first, and those that were read together with it."""
        self._prompt_tokens += request.prompt_tokens
        self._pass(now_s)
        self._decoding += request.sequences
        if request.stream:
            self._batch += request.sequences
        # The time in which they were decoded is not known: counted with the time from now on, they would have taken none.
        first = max(1, tokens)
        self._untimed_tokens += first
        self.decoded -= first

    def ended(self, request: Request, now_s: float, *, begun: bool) -> None:
        """Records that a request is no longer in flight. `begun`: it had a first report."""
        self._pass(now_s)
        if begun:
            self._decoding -= request.sequences
        if begun or not request.stream:
            self._batch -= request.sequences

    def answered(self, request: Request, tokens: int) -> None:
        """Records a whole answer of so many tokens that comes at its end: produced all the same, but nothing is known of its pace."""
        self._prompt_tokens += request.prompt_tokens
        self._untimed_tokens += tokens

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
