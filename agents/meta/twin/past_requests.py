"""Recent requests, kept so that the twin can replay them: times, lengths, and what was known of each. Pure, bounded.

Ended requests have their true output length. Waiting, running and aborted requests have the predicted length. So the newest part of a
window is exactly as uncertain as the scheduler's own knowledge of it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import inf, isfinite
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from hmas.controller.core.body_bounds import SEQUENCES_MOST
from hmas.controller.core.messages import Completion, RequestFeatures
from hmas.controller.core.statistics.recent_ids import RecentIds
from hmas.controller.core.types import DEFAULT_IMPORTANCE, Estimates, OutcomeKind, Request, Slo

REMEMBERED = 20_000
"""Most requests that are kept, the newest; each takes about half a KB."""
LOST_S = 600.0
"""Age above which a request without a reported end counts as lost."""
GONE_S = 5.0
"""A gateway that is silent for this long while another one reports is gone. `REFUSED_KEPT`: most ids of refused requests that are kept."""
REFUSED_KEPT = 4_096
TOKENS_MOST = 1 << 21
"""Largest plausible token count of a prompt or an answer. `MS_MOST`: largest plausible milliseconds, eleven days."""
MS_MOST = 1e9
APART_MOST = 32
"""Most answers of one request that are replayed apart, which bounds the work of a replay."""
LONG = 2.0
"""Ratio of a length's upper bound to its median if nothing else is known."""


class PastRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One past request.

    Attributes:
        request: The request as it arrived, as far as a replay needs it.
        believed: The scheduler's estimates; costs are 0 if none were reported.
        output_tokens: True length if it completed, else the predicted one.
        good: Whether it really met both targets; None if its end is not known or its client caused it.
        served_tpot_ms: Its true time per output token; 0 if not known.
        dispatched_s, ended_s: When it was dispatched to an engine, and when it ended; infinite if not known.
    """

    request: Request
    believed: Estimates
    output_tokens: int
    good: bool | None = None
    served_tpot_ms: float = 0.0
    dispatched_s: float = inf
    ended_s: float = inf

    @property
    def has_ended(self) -> bool:
        """Whether its end is known, whatever the outcome."""
        return isfinite(self.ended_s)

    def apart(self) -> "list[PastRequest]":
        """Returns its answers as one request each, the first under its own id, since an engine model computes one sequence of a request.

        The first computes the prompt, as engines do once for all answers. Beyond `APART_MOST` they share the output.
        """
        several, believed, request = min(self.request.sequences, APART_MOST), self.believed, self.request
        if several == 1:
            return [self]
        cap = request.max_output_tokens
        one = replace(
            self,
            request=replace(
                request,
                sequences=1,
                prompt_tokens=max(1, request.prompt_tokens - several + 1),
                max_output_tokens=max(1, cap // several) if cap else None,
            ),
            believed=replace(
                believed, output_tokens=believed.output_tokens / several, output_tokens_upper=believed.output_tokens_upper / several
            ),
            output_tokens=max(1, self.output_tokens // several),
        )
        others = (replace(one.request, id=f"{request.id}/{number}", prompt_tokens=1) for number in range(1, several))
        return [one, *(replace(one, request=other) for other in others)]

    def again(self) -> Request:
        """Returns the request for the replay's scheduler, without a deadline: a client may behave differently under another order.

        It is in no session either, since those of requests that have not ended are not known.
        """
        return replace(
            self.request,
            max_output_tokens=self.request.max_output_tokens or None,
            declared_slo=self.believed.slo,
            deadline_s=inf,
            session="",
            blocks=(),
            priority=0,
            min_output_tokens=0,
        )

    def estimates(self, otherwise: Estimates) -> Estimates:
        """Returns its estimates; costs that were not reported come from `otherwise`."""
        believed = self.believed
        return replace(
            believed,
            output_tokens_upper=max(believed.output_tokens, believed.output_tokens_upper),
            ttft_ms=believed.ttft_ms or otherwise.ttft_ms,
            tpot_ms=believed.tpot_ms or otherwise.tpot_ms,
            source="history",
        )


def is_possible(ended: Completion) -> bool:
    """Whether a completion's figures are plausible; one with impossible figures is not replayed."""
    tokens = 0 < ended.prompt_tokens <= TOKENS_MOST and 0 <= ended.output_tokens <= TOKENS_MOST
    beliefs = 0.0 <= ended.predicted_output_tokens <= TOKENS_MOST and 0.0 <= ended.predicted_tpot_ms <= MS_MOST
    times = all(
        -1.0 <= value <= MS_MOST for value in (ended.queue_ms, ended.ttft_ms, ended.tpot_ms, ended.total_ms, ended.predicted_ttft_ms)
    )
    return tokens and beliefs and times and 0 < ended.sequences <= SEQUENCES_MOST and max(ended.ttft_slo_ms, ended.tpot_slo_ms) <= MS_MOST


class Traffic:
    """The newest requests, from perception's features and the gateways' completions.

    Attributes:
        heard_s: Arrival of the newest of them.
    """

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._asked: OrderedDict[str, PastRequest] = OrderedDict()
        self._refused = RecentIds(REFUSED_KEPT)
        self._gateways: dict[str, tuple[float, int]] = {}
        self.heard_s = float("-inf")

    def __len__(self) -> int:
        return len(self._asked)

    def features(self, said: RequestFeatures) -> None:
        """Records a newly read request, which arrived a moment ago. A request that has already ended stays as it is."""
        if said.request_id in self._refused or said.request_id in self._asked or not said.ttft_slo_ms > 0.0 or not said.tpot_slo_ms > 0.0:
            return
        sequences = max(1, min(said.choices, SEQUENCES_MOST))
        self.came(
            Request(
                id=said.request_id,
                tenant=said.tenant,
                model=said.model,
                arrival_s=said.sent_s,
                prompt_tokens=said.prompt_tokens,
                sequences=sequences,
                stream=said.stream,
            ),
            Estimates(
                slo=Slo(ttft_ms=said.ttft_slo_ms, tpot_ms=said.tpot_slo_ms),
                task_type=said.task_type,
                importance=said.importance,
                output_tokens=sequences * said.output_tokens,
                output_tokens_upper=sequences * said.output_tokens_p90,
                ttft_ms=0.0,
                tpot_ms=0.0,
            ),
        )

    def came(self, request: Request, believed: Estimates) -> None:
        """Records an arrival with its estimates; without perception it replaces `features`."""
        self.keep(PastRequest(request=request, believed=believed, output_tokens=max(1, round(believed.output_tokens))))

    def completion(self, ended: Completion) -> None:
        """Records an ended request: arrival, targets and estimates are the gateway's; the length is true if it completed."""
        if not ended.ttft_slo_ms > 0.0 or not ended.tpot_slo_ms > 0.0 or ended.outcome is OutcomeKind.REJECTED:
            self._asked.pop(ended.request_id, None)
            # An engine may refuse a request before perception has read it: features that come later are not those of an open request.
            self._refused.add(ended.request_id)
            return
        before = self._asked.get(ended.request_id)
        known = ended.outcome is OutcomeKind.COMPLETED and ended.output_tokens > 0
        tokens = ended.predicted_output_tokens or (
            before.believed.output_tokens if before is not None else float(max(1, ended.output_tokens))
        )
        self.keep(
            PastRequest(
                request=Request(
                    id=ended.request_id,
                    tenant=ended.tenant,
                    model=ended.model,
                    arrival_s=ended.arrival_s,
                    prompt_tokens=ended.prompt_tokens,
                    max_output_tokens=ended.max_output_tokens,
                    sequences=ended.sequences,
                    stream=ended.stream,
                ),
                believed=Estimates(
                    slo=Slo(ttft_ms=ended.ttft_slo_ms, tpot_ms=ended.tpot_slo_ms),
                    task_type=ended.task_type,
                    importance=before.believed.importance if before is not None else DEFAULT_IMPORTANCE,
                    output_tokens=tokens,
                    output_tokens_upper=before.believed.output_tokens_upper if before is not None else LONG * tokens,
                    ttft_ms=max(0.0, ended.predicted_ttft_ms),
                    tpot_ms=max(0.0, ended.predicted_tpot_ms),
                ),
                output_tokens=ended.output_tokens if known else max(1, round(tokens), ended.output_tokens),
                good=None if ended.outcome is OutcomeKind.CANCELLED else ended.slo_met,
                # Of several answers it is that of the longest, and no engine's pace.
                served_tpot_ms=max(0.0, ended.tpot_ms) if known and ended.sequences == 1 else 0.0,
                dispatched_s=ended.arrival_s + ended.queue_ms / 1000.0 if ended.queue_ms >= 0.0 else inf,
                ended_s=ended.arrival_s + max(0.0, ended.total_ms) / 1000.0,
            )
        )

    def alive(self, gateway: str, now_s: float, arrived_total: int) -> None:
        """Records a sign of life of a gateway with its counter of arrivals. When a gateway ends, its open requests are lost with it.

        It has ended if it is silent while another reports. It has ended, too, if its counter has fallen: it was started again then, which
        in a container leaves its name as it was.
        """
        last_s, arrived_before = self._gateways.get(gateway, (now_s, 0))
        self._gateways[gateway] = now_s, arrived_total
        # A snapshot that is older than the last one comes out of order, and says nothing of a restart.
        ended_s = [last_s] if arrived_total < arrived_before and now_s >= last_s else []
        for silent, (at_s, _) in list(self._gateways.items()):
            if abs(now_s - at_s) > GONE_S:
                del self._gateways[silent]
                ended_s.append(at_s)
        for last_s in ended_s:
            for lost in [one.request.id for one in self._asked.values() if not one.has_ended and one.request.arrival_s <= last_s]:
                del self._asked[lost]

    def window(self, start_s: float, end_s: float, most: int, more: Sequence[PastRequest] = ()) -> list[PastRequest]:
        """Returns the requests that arrived in a span, by arrival; if there are more than `most`, the newest. `more`: taken like them."""
        found = [asked for asked in (*self._asked.values(), *more) if start_s <= asked.request.arrival_s < end_s]
        found.sort(key=attrgetter("request.arrival_s"))
        return found[-most:] if most else []

    def there(self, start_s: float, more: Sequence[PastRequest] = ()) -> list[PastRequest]:
        """Returns the requests open at the start of a span, by arrival; those so old that their end was probably missed are left out.

        `more`: taken like the known ones.
        """
        first_s = start_s - LOST_S
        found = [asked for asked in (*self._asked.values(), *more) if first_s <= asked.request.arrival_s < start_s < asked.ended_s]
        found.sort(key=attrgetter("request.arrival_s"))
        return found

    def stand_ins(self, still_open: int, now_s: float) -> list[PastRequest]:
        """Returns copies of known open requests in place of the unknown ones, by arrival; none if no open request is known.

        Only perception's features tell of a request before it has ended. By default (`agents.ask: waiting`) it is asked about only a
        sample of the requests that are sent at once or whose targets and length are known. Without the others a replay would lack most of
        the queue of an overload, and long answers that still run, so it would look better than what happened. To count fewer misses
        instead would leave the replay too light. A known request stands for those that came after it, so its copies are spread evenly up
        to the next known arrival.

        Args:
            still_open: Number of waiting and running requests, as the gateway counts them.
            now_s: The time.
        """
        known = [one for one in self.there(now_s) if not one.has_ended]
        unknown = min(self._limit, still_open - len(known)) if known else 0
        arrivals_s = [*(one.request.arrival_s for one in known), now_s]
        found: list[PastRequest] = []
        for number in range(unknown):
            place, share = divmod((number + 0.5) * len(known) / unknown, 1.0)
            one, (before_s, after_s) = known[int(place)], arrivals_s[int(place) : int(place) + 2]
            request = replace(one.request, id=f"{one.request.id}~{number}", arrival_s=before_s + share * (after_s - before_s))
            found.append(replace(one, request=request))
        return found

    def keep(self, asked: PastRequest) -> None:
        """Records a request as it is known now."""
        self._asked[asked.request.id] = asked
        self._asked.move_to_end(asked.request.id)
        self.heard_s = max(self.heard_s, asked.request.arrival_s)
        while len(self._asked) > self._limit:
            self._asked.popitem(last=False)
