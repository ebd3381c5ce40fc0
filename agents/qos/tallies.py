"""Counts every event once, in the sub-window of its own time; both views read these counts. Pure and bounded.

A completion costs O(1) at any rate; a view costs the addition of the sub-windows' rows. Memory is fixed except for tenants, of which each
sub-window holds a bounded number.
"""

from bisect import insort

import numpy as np

from hmas.agents.qos import counters as col
from hmas.agents.qos.counters import PaneRing
from hmas.agents.qos.outcomes import (
    Tally,
    asked_output_tokens,
    asked_tokens,
    missed_in_queue,
    served_late,
    served_tokens,
)
from hmas.agents.qos.readings import Growth
from hmas.agents.qos.sketch import Counts, HeavyHitters, merged
from hmas.controller.core.messages import Completion
from hmas.controller.core.objectives import is_judged, missed_tpot, missed_ttft
from hmas.controller.core.types import OutcomeKind

SHORT_PANES = 25
LONG_PANES = 60
ARRIVALS_MAX = 4_096
"""Number of newest arrivals whose times are kept, for the variation of the gaps between them."""
TOKENS_MAX = 10_000_000
"""Most tokens that one request counts for."""
STEP_MAX = 1_000_000_000
"""Largest growth of a counter between two snapshots that is accepted."""


class Tallies:
    """The counts of both windows.

    Args:
        short_s: Span of the short window, more than 0.
        long_s: Span of the long one, at least as much.

    Attributes:
        short, long: The rings of sub-windows; columns are named in `hmas.agents.qos.counters`.
        by_pane: The tenants with the most requests, by sub-window of the long window.
        arrivals_s: The newest arrivals' times, bounded.
    """

    def __init__(self, short_s: float, long_s: float) -> None:
        self.short = PaneRing(short_s, SHORT_PANES, col.SHORT_WIDTH)
        self.long = PaneRing(long_s, LONG_PANES, col.LONG_WIDTH)
        self.by_pane: dict[int, HeavyHitters] = {}
        self.arrivals_s: list[float] = []

    def add(self, completion: Completion, at_s: float) -> bool:
        """Counts an ended request at that time; returns False if it is from before the long window."""
        row = self.long.row(at_s)
        if row < 0:
            return False
        judged, served = is_judged(completion), _bounded(served_tokens(completion))
        produced = _bounded(completion.output_tokens)
        columns = _outcome_columns(completion, judged=judged)
        for ring, start in ((self.long, row), (self.short, self.short.row(at_s))):
            if start >= 0:
                cells = ring.cells
                for column in columns:
                    cells[start + column] += 1
                cells[start + col.SERVED] += served
                cells[start + col.PRODUCED] += produced
        self._count_workload(completion, row, produced)
        self._count_sender(completion, self.long.number(at_s), (_bounded(asked_tokens(completion)), served) if judged else (0, 0))
        return True

    def move(self, now_s: float) -> None:
        """Advances the windows."""
        self.short.move(now_s)
        self.long.move(now_s)
        first = self.long.first
        for number in [number for number in self.by_pane if number < first]:
            del self.by_pane[number]

    def observe(self, at_s: float, grown: Growth) -> None:
        """Counts a snapshot by what grew since the one before."""
        step = max(-STEP_MAX, min(STEP_MAX, grown.overdue))
        for ring in (self.short, self.long):
            start = ring.row(at_s)
            # A completion stamped far ahead may have moved the window past this snapshot.
            if start >= 0:
                ring.cells[start + col.OVERDUE] += step
        self._count_arrivals(max(0, min(STEP_MAX, grown.arrived)), grown.since_s, at_s)
        cells, row = self.long.cells, self.long.row(at_s)
        if row < 0:
            return
        cells[row + col.PEAK] = max(cells[row + col.PEAK], int(1000.0 * min(grown.peak_rps, float(STEP_MAX))))
        cells[row + col.SNAPSHOTS] += 1

    def forget_gateway(self) -> None:
        """Clears all that depends on the old gateway's counters, because another gateway process counts now."""
        self.short.clear_columns(col.OVERDUE, col.OVERDUE)
        self.long.clear_columns(col.OVERDUE, col.OVERDUE)
        self.long.clear_columns(col.ARRIVED, col.SNAPSHOTS)

    def clear(self) -> None:
        """Forgets everything."""
        self.short.clear()
        self.long.clear()
        self.by_pane.clear()
        self.arrivals_s.clear()

    def demand(self) -> tuple[float, float]:
        """Mean prompt and output tokens asked for by the requests that ended within the long window; 0 if there are none."""
        ended, prompts = self.long.sum_of(col.ENDED), self.long.sum_of(col.PROMPT_SUM)
        return (prompts / ended, self.long.sum_of(col.ASKED_OUTPUT) / ended) if ended else (0.0, 0.0)

    def tenants(self) -> HeavyHitters:
        """Returns the tenants of the requests that ended within the long window."""
        return merged(part for _, part in sorted(self.by_pane.items()))

    def gaps_s(self) -> list[float]:
        """Returns the gaps between arrivals within the long window, of the newest `ARRIVALS_MAX` ended requests, by arrival."""
        times = np.array(self.arrivals_s[-ARRIVALS_MAX:])
        gaps: list[float] = np.diff(times[times >= self.long.start_s]).tolist()
        return gaps

    def _count_arrivals(self, arrived: int, since_s: float, at_s: float) -> None:
        """Counts the arrivals since the last snapshot; after a gap in the telemetry they are spread evenly."""
        ring = self.long
        steps = max(1, ring.number(at_s) - ring.number(since_s))
        each, rest = divmod(arrived, steps)
        newest = ring.number(at_s)
        for number in range(max(ring.first, newest - steps + 1), newest + 1):
            ring.cells[ring.row_of(number) + col.ARRIVED] += each + (number > newest - rest)

    def _count_workload(self, completion: Completion, row: int, produced: int) -> None:
        cells = self.long.cells
        prompt = _bounded(completion.prompt_tokens)
        cells[row + col.ENDED] += 1
        cells[row + col.ASKED_OUTPUT] += _bounded(asked_output_tokens(completion))
        cells[row + col.PROMPT_SUM] += prompt
        cells[row + col.PROMPT + _token_bucket(prompt)] += 1
        if (task := col.TASK_COLUMN.get(completion.task_type.value)) is not None:
            cells[row + task] += 1
        if completion.queue_ms >= 0.0:
            cells[row + col.DISPATCHED] += 1
            cells[row + col.SERVED_LATE] += served_late(completion)
        if completion.outcome is OutcomeKind.COMPLETED:
            cells[row + col.COMPLETED] += 1
            cells[row + col.OUTPUT_SUM] += produced
            cells[row + col.OUTPUT + _token_bucket(produced)] += 1
            if completion.queue_ms >= 0.0:
                cells[row + col.SERVICE + _time_bucket(completion.total_ms - completion.queue_ms)] += 1

    def _count_sender(self, completion: Completion, pane: int, tokens: tuple[int, int]) -> None:
        tenants = self.by_pane.get(pane)
        if tenants is None:
            tenants = self.by_pane[pane] = HeavyHitters()
        tenants.add(completion.tenant, *tokens)
        arrivals = self.arrivals_s
        insort(arrivals, completion.arrival_s)
        if len(arrivals) > 2 * ARRIVALS_MAX:
            del arrivals[:-ARRIVALS_MAX]


_time_bucket, _token_bucket = col.TIMES.index, col.TOKENS.index


def _outcome_columns(completion: Completion, *, judged: bool) -> list[int]:
    """Returns the columns of both windows that count this request."""
    columns = []
    if completion.ttft_ms >= 0.0:
        columns.append(col.TTFT + _time_bucket(completion.ttft_ms))
    if completion.tpot_ms >= 0.0:
        columns.append(col.TPOT + _time_bucket(completion.tpot_ms))
    if judged:
        columns.append(col.JUDGED)
        if completion.slo_met:
            columns.append(col.MET)
        if missed_ttft(completion):
            columns.append(col.TTFT_MISSED)
            if missed_in_queue(completion):
                columns.append(col.QUEUE_MISSED)
        if missed_tpot(completion):
            columns.append(col.TPOT_MISSED)
    return columns


def _bounded(tokens: int) -> int:
    return tokens if 0 <= tokens <= TOKENS_MAX else 0 if tokens < 0 else TOKENS_MAX


def tally(row: Counts) -> Tally:
    """Returns the settled requests of a row."""
    return Tally(*row[col.JUDGED : col.OVERDUE + 1].tolist())
