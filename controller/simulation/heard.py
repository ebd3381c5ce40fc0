"""What a gateway hears of an engine's tokens: those of an answer that is not streamed come at its end."""

from collections.abc import Sequence

from hmas.engines.sim.model import EngineModel


class Heard:
    """The `TokenSource` of an engine model, without the tokens of whole answers that have not ended, or were broken off.

    Attributes:
        model: The engine.
        whole: Ids of the requests in its batch whose answers come whole.
    """

    __slots__ = ("_never", "model", "whole")

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.whole: set[str] = set()
        self._never = 0

    def breaks_off(self, request_id: str, now_s: float) -> None:
        """Records that a request is about to be aborted: of a whole answer no token is ever heard."""
        if request_id in self.whole:
            self.whole.discard(request_id)
            self._never += sum(tokens for name, tokens in self.model.tokens(now_s) if name == request_id)

    def tokens(self, now_s: float) -> Sequence[tuple[str, int]]:
        """See `TokenSource.tokens`."""
        told = self.model.tokens(now_s)
        return [one for one in told if one[0] not in self.whole] if self.whole else told

    def last_step_s(self, now_s: float) -> float:
        """See `TokenSource.last_step_s`."""
        return self.model.last_step_s(now_s)

    def generated(self, now_s: float) -> int:
        """See `TokenSource.generated`."""
        generated = self.model.generated(now_s) - self._never
        if self.whole:
            generated -= sum(tokens for name, tokens in self.model.tokens(now_s) if name in self.whole)
        return generated
