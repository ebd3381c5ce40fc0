"""What an instance decodes: its tokens, and the sequence-seconds that they took."""

from hmas.controller.core.types import Request
from hmas.controller.scheduling.instances.running import TokenSource

_SAMPLE_TOKENS = 8
"""Tokens that a sample of the pace needs: one read of a stream may bring several tokens at once, or part of one."""


class DecodeTally:
    """Counts tokens and time of one instance's streaming requests. `source`: where tokens are counted, None if each is reported.

    Attributes:
        decoded: Output tokens reported, without those of each request's first report. The instance adds to it, since a call for each token
            costs more.
    """

    __slots__ = ("_busy_s", "_decoding", "_first_tokens", "_prompt_tokens", "_sampled", "_seq_s", "_since_s", "decoded")

    def __init__(self) -> None:
        self._decoding = self.decoded = self._first_tokens = self._sampled = self._prompt_tokens = 0
        self._seq_s = self._busy_s = self._since_s = 0.0

    def began(self, request: Request, now_s: float, tokens: int) -> None:
        """Records a request's first report, of so many tokens: its first, and those that were read together with it."""
        self._prompt_tokens += request.prompt_tokens
        self._pass(now_s)
        self._decoding += request.sequences
        # The time in which they were decoded is not known: counted with the time from now on, they would have taken none.
        first = max(1, tokens)
        self._first_tokens += first
        self.decoded -= first

    def ended(self, request: Request, now_s: float) -> None:
        """Records that a request that had begun decodes no more."""
        self._pass(now_s)
        self._decoding -= request.sequences

    def sample(self, now_s: float, source: TokenSource | None) -> tuple[float, float, float] | None:
        """Milliseconds per output token, the mean number of sequences while any decoded, and tokens per sequence, since the last sample.

        None with too few tokens.
        """
        self._pass(now_s)
        decoded = self._outputs(now_s, source) - self._first_tokens
        tokens = decoded - self._sampled
        if tokens < _SAMPLE_TOKENS:
            return None
        sequences = self._seq_s / self._busy_s if self._busy_s else 0.0
        sample = (1000.0 * self._seq_s / tokens, sequences, tokens / max(1.0, sequences))
        self._sampled = decoded
        self._seq_s = self._busy_s = 0.0
        return sample

    def produced(self, now_s: float, source: TokenSource | None) -> tuple[int, int]:
        """Prompt tokens computed and output tokens produced since the start, as far as they were reported."""
        return self._prompt_tokens, self._outputs(now_s, source)

    def _outputs(self, now_s: float, source: TokenSource | None) -> int:
        return self.decoded + self._first_tokens if source is None else source.generated(now_s)

    def _pass(self, now_s: float) -> None:
        if self._decoding:
            self._seq_s += self._decoding * (now_s - self._since_s)
            self._busy_s += now_s - self._since_s
        self._since_s = now_s
