"""An independent check of a simulation's result: it uses only arrivals and records, and none of the kernel's own calculations.

It checks these properties:

1. Conservation: one record per arrival, with its own figures; the scheduler's counts and the engines' totals are the records' sums.
2. Causality: arrival <= dispatch <= first token <= last token <= end; nothing is faster than the profile's fastest step allows; a
   completed request produced its output length; SLO verdicts follow from the latencies.
3. The window: at no moment are more requests in flight on an instance than the largest active window.
4. The KV cache: requests that decode at the same time fit, as far as the records show.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from hmas.controller.core.types import OutcomeKind
from hmas.controller.simulation.arrivals import Arrival
from hmas.controller.simulation.result import EngineTotals, RequestRecord, SimulationResult
from hmas.engines.sim.profile import Profile

EPSILON_S = 1e-6
"""Times in the records are sums and differences of floats; times closer than this count as equal."""
LISTED = 5
"""Violations of one kind that are listed one by one; the rest are counted."""


class _Notes:
    """Collects violations, with the full text of the first few of each kind."""

    def __init__(self) -> None:
        self._told: dict[str, list[str]] = {}
        self._count: Counter[str] = Counter()

    def add(self, kind: str, text: str) -> None:
        self._count[kind] += 1
        told = self._told.setdefault(kind, [])
        if len(told) < LISTED:
            told.append(f"{kind}: {text}")

    def lines(self) -> list[str]:
        lines: list[str] = []
        for kind, told in self._told.items():
            lines += told
            if self._count[kind] > len(told):
                lines.append(f"{kind}: {self._count[kind] - len(told)} more")
        return lines


def check(
    arrivals: Iterable[Arrival],
    result: SimulationResult,
    *,
    profiles: Mapping[str, Profile] | None = None,
    n_run: Mapping[str, int] | int | None = None,
) -> list[str]:
    """Checks a result.

    Args:
        arrivals: All possible arrivals, follow-up requests included, in any order. Those after the result's end need no record.
        result: The result of a run with a fresh scheduler and fresh engines.
        profiles: By instance; limits of speed and memory are checked only for these instances.
        n_run: The largest window that was ever active, of all instances or by instance; None skips the check of windows.

    Returns:
        Violations as text, empty if there are none. At most five of a kind are listed, the rest are counted.
    """
    notes = _Notes()
    asked: dict[str, int] = {}
    loose = _match(arrivals, result, asked, notes)
    _check_counts(result, notes)
    profiles = profiles or {}
    by_instance: dict[str, list[RequestRecord]] = {}
    for record in result.records:
        _check_times(record, result.end_s, notes)
        _check_story(record, notes)
        if record.outcome is OutcomeKind.COMPLETED and record.request_id in asked:
            wanted = asked[record.request_id]
            if record.output_tokens != wanted:
                notes.add("tokens", f"request {record.request_id} produced {record.output_tokens}, it was to produce {wanted}")
        if record.instance:
            by_instance.setdefault(record.instance, []).append(record)
            if record.instance in profiles:
                _check_speed(record, profiles[record.instance], notes, loose=loose)
    for name in sorted(by_instance.keys() | result.engines.keys()):
        records = by_instance.get(name, [])
        totals = result.engines.get(name)
        if totals is None:
            notes.add("conservation", f"{len(records)} records name instance {name!r}, which has no engine")
            continue
        _check_totals(name, records, totals, result, notes, loose=loose)
        window = n_run.get(name) if isinstance(n_run, Mapping) else n_run
        if window is not None:
            _check_window(name, records, window, notes)
        if name in profiles:
            if not result.counts.running:
                # If work was cut off, tokens of unfinished steps are counted, but not the steps.
                _check_work(name, records, totals, profiles[name], notes, loose=loose)
            _check_capacity(name, records, totals, profiles[name], notes, loose=loose)
    return notes.lines()


def _match(arrivals: Iterable[Arrival], result: SimulationResult, asked: dict[str, int], notes: _Notes) -> bool:
    """Compares each arrival with its record; fills `asked` with the output length of each request.

    Returns whether blocks may be shared: then the records give no bound on prompts and KV cache.
    """
    records: dict[str, RequestRecord] = {}
    before_s = float("-inf")
    for record in result.records:
        if record.request_id in records:
            notes.add("conservation", f"request {record.request_id} has more than one record")
        records[record.request_id] = record
        if record.arrival_s < before_s:
            notes.add("order", f"request {record.request_id} arrived at {record.arrival_s} s and stands after one of {before_s} s")
        before_s = record.arrival_s
    loose = False
    for arrival in arrivals:
        request = arrival.request
        loose = loose or bool(arrival.block_hashes)
        found = records.get(request.id)
        if found is None:
            if request.arrival_s < result.end_s:
                notes.add("conservation", f"request {request.id} arrived at {request.arrival_s} s and has no record")
            continue
        if request.id in asked:
            notes.add("conservation", f"request {request.id} arrived more than once")
        cap = arrival.output_tokens if request.max_output_tokens is None else request.max_output_tokens
        asked[request.id] = max(1, min(arrival.output_tokens, cap))
        for field in ("tenant", "model", "arrival_s", "prompt_tokens"):
            was, told = getattr(request, field), getattr(found, field)
            if was != told:
                notes.add("conservation", f"request {request.id} arrived with {field} {was!r}, its record says {told!r}")
    for request_id in records:
        if request_id not in asked:
            notes.add("conservation", f"request {request_id} has a record and never arrived")
    return loose


def _check_counts(result: SimulationResult, notes: _Notes) -> None:
    counts = result.counts
    outcomes = Counter(record.outcome for record in result.records)
    if counts.arrived != len(result.records):
        notes.add("conservation", f"the scheduler counts {counts.arrived} arrivals, there are {len(result.records)} records")
    for kind in OutcomeKind:
        if counts.ended.get(kind, 0) != outcomes[kind]:
            notes.add("conservation", f"the scheduler counts {counts.ended.get(kind, 0)} {kind.value}, the records {outcomes[kind]}")
    if counts.queued + counts.running != outcomes[None]:
        live = f"{counts.queued} queued and {counts.running} running"
        notes.add("conservation", f"the scheduler counts {live}, {outcomes[None]} records have no outcome")
    sent = sum(1 for record in result.records if record.instance)
    if counts.dispatched < sent:
        notes.add("conservation", f"the scheduler counts {counts.dispatched} dispatches, {sent} records name an instance")


def _check_times(record: RequestRecord, end_s: float, notes: _Notes) -> None:
    """Checks the order of one request's times."""
    name, slack_ms = f"request {record.request_id}", 1000.0 * EPSILON_S
    ended = record.outcome is not None and record.outcome is not OutcomeKind.REJECTED
    if ended and record.total_ms < 0.0:
        notes.add("causality", f"{name} ended {record.total_ms} ms after its arrival")
    if record.arrival_s + max(0.0, record.total_ms) / 1000.0 > end_s + EPSILON_S:
        notes.add("causality", f"{name} ended after the simulation's end at {end_s} s")
    if record.queue_ms > max(0.0, record.total_ms) + slack_ms:
        notes.add("causality", f"{name} was dispatched after its end")
    if record.ttft_ms < 0.0:
        return
    if abs(record.queue_ms + record.service_ttft_ms - record.ttft_ms) > slack_ms:
        parts = f"queue {record.queue_ms} ms and service {record.service_ttft_ms} ms"
        notes.add("causality", f"{name}: {parts} are not its TTFT of {record.ttft_ms} ms")
    if record.service_ttft_ms < 0.0:
        notes.add("causality", f"{name} had its first token before its dispatch")
    last_ms = record.ttft_ms + max(0.0, record.tpot_ms) * max(0, record.output_tokens - 1)
    if last_ms > record.total_ms + slack_ms:
        notes.add("causality", f"{name} ended at {record.total_ms} ms, before its last token at {last_ms} ms")


def _started(record: RequestRecord) -> bool:
    """Whether a token has come. Of a whole answer nothing is heard before its end."""
    return record.ttft_ms >= 0.0 if record.stream else record.output_tokens >= 1


def _check_story(record: RequestRecord, notes: _Notes) -> None:
    """Checks that the fields of one record are consistent with each other."""
    name, started = f"request {record.request_id}", _started(record)
    if (record.queue_ms >= 0.0) != bool(record.instance):
        notes.add("causality", f"{name} has queue_ms {record.queue_ms} and instance {record.instance!r}")
    if started and not record.instance:
        notes.add("causality", f"{name} has a first token and was never dispatched")
    if (record.output_tokens >= 1) != started or (record.ttft_ms >= 0.0 and not record.stream):
        notes.add("causality", f"{name} has {record.output_tokens} output tokens and TTFT {record.ttft_ms}")
    if (record.stream and record.output_tokens >= 2) != (record.tpot_ms >= 0.0):
        notes.add("causality", f"{name} has {record.output_tokens} output tokens and TPOT {record.tpot_ms}")
    completed, slo = record.outcome is OutcomeKind.COMPLETED, record.slo
    if completed and not started:
        notes.add("causality", f"{name} completed without a token")
    if slo is None or not completed:
        met = False
    elif record.stream:
        met = 0.0 <= record.ttft_ms <= slo.ttft_ms and record.tpot_ms <= slo.tpot_ms
    else:
        met = record.total_ms <= slo.ttft_ms + slo.tpot_ms * (record.output_tokens - 1)
    if record.slo_met != met:
        notes.add("slo", f"{name} has slo_met {record.slo_met}; TTFT {record.ttft_ms}, TPOT {record.tpot_ms}, targets {slo}")


def _least_step_ms(profile: Profile) -> float:
    """The time of this engine's cheapest step: the work of a step adds 0 or more, and the curve never falls."""
    return profile.step_ms + profile.curve_ms(0)


def _check_speed(record: RequestRecord, profile: Profile, notes: _Notes, *, loose: bool) -> None:
    """Checks that no request was served faster than by an idle engine."""
    least_ms, slack_ms = _least_step_ms(profile), 1000.0 * EPSILON_S
    if record.ttft_ms >= 0.0:
        tokens = 1 if loose else max(1, record.prompt_tokens)
        steps = -(-tokens // profile.max_num_batched_tokens)
        pairs = tokens * (tokens + 1) / 2.0
        floor_ms = steps * least_ms + profile.prefill_ms_per_token * tokens + profile.prefill_ms_per_ktoken_sq * pairs * 1e-6
        if record.service_ttft_ms < floor_ms - slack_ms:
            notes.add(
                "speed",
                f"request {record.request_id}: first token {record.service_ttft_ms:.3f} ms after dispatch, "
                f"its prompt alone takes {floor_ms:.3f} ms on {record.instance}",
            )
    if not record.stream and record.outcome is OutcomeKind.COMPLETED:
        served_ms, floor_ms = record.total_ms - record.queue_ms, record.output_tokens * least_ms
        if served_ms < floor_ms - slack_ms:
            notes.add("speed", f"request {record.request_id}: served in {served_ms:.3f} ms, its tokens alone take {floor_ms:.3f} ms")
    if 0.0 <= record.tpot_ms < least_ms + profile.decode_ms_per_seq - slack_ms:
        notes.add("speed", f"request {record.request_id}: TPOT {record.tpot_ms:.3f} ms, the least step takes {least_ms:.3f} ms")


def _check_totals(
    name: str, records: list[RequestRecord], totals: EngineTotals, result: SimulationResult, notes: _Notes, *, loose: bool
) -> None:
    """Compares the engine's own totals with the sums of its records."""
    generated = sum(record.output_tokens for record in records)
    prompts = sum(max(1, record.prompt_tokens) for record in records if _started(record))
    # A request that was broken off may have cost the engine more than its record shows, and the record of a live request has no totals.
    whole = result.counts.running == 0 and all(record.outcome is OutcomeKind.COMPLETED for record in records)
    for what, engine, summed in (("output tokens", totals.generation_tokens, generated), ("prompt tokens", totals.prompt_tokens, prompts)):
        if what == "prompt tokens" and loose:
            continue
        if engine < summed or (whole and engine != summed):
            notes.add("conservation", f"instance {name} counts {engine} {what}, its records {summed}")
    first_s = min((record.arrival_s for record in result.records), default=result.end_s)
    if not 0.0 <= totals.busy_s <= _busy_until_s(result, whole=whole) - first_s + EPSILON_S:
        notes.add("causality", f"instance {name} was busy for {totals.busy_s} s between {first_s} s and {result.end_s} s")
    longest = max((record.output_tokens for record in records), default=0)
    if totals.steps < longest and not result.counts.running:
        notes.add("conservation", f"instance {name} counts {totals.steps} steps, one request alone took {longest}")


def _check_work(name: str, records: list[RequestRecord], totals: EngineTotals, profile: Profile, notes: _Notes, *, loose: bool) -> None:
    """Checks that the steps took their least time, and that no step exceeded its token budget."""
    least_s = totals.steps * _least_step_ms(profile) / 1000.0
    if totals.busy_s < least_s * (1.0 - 1e-9) - EPSILON_S:
        notes.add("speed", f"instance {name} made {totals.steps} steps in {totals.busy_s} s, which take {least_s} s at least")
    # A request's first token comes from the step that ends its prompt, and takes no token of the budget.
    started = sum(map(_started, records))
    tokens = totals.prompt_tokens + totals.generation_tokens - started
    if not loose and tokens > totals.steps * profile.max_num_batched_tokens:
        notes.add("speed", f"instance {name} computed {tokens} tokens in {totals.steps} steps of {profile.max_num_batched_tokens} at most")


def _busy_until_s(result: SimulationResult, *, whole: bool) -> float:
    """Upper bound of busy time. A step in progress at the end counts in full, so there is no bound if work was cut off."""
    return result.end_s if whole and result.counts.queued == 0 else float("inf")


def _held(spans: Iterable[tuple[float, float, int]]) -> Iterator[tuple[float, int]]:
    """Each beginning and end of spans (begin, end, size) in time: when, and the sum of the sizes of the spans that hold then."""
    moments: list[tuple[float, int]] = []
    for begin_s, end_s, size in spans:
        moments += [(begin_s, size), (end_s - EPSILON_S, -size)]
    held = 0
    for at_s, change in sorted(moments):
        held += change
        yield at_s, held


def _check_window(name: str, records: list[RequestRecord], window: int, notes: _Notes) -> None:
    in_flight = (
        (record.arrival_s + record.queue_ms / 1000.0, record.arrival_s + record.total_ms / 1000.0, 1)
        for record in records
        if record.outcome is not None
    )
    for at_s, count in _held(in_flight):
        if count > window:
            notes.add("window", f"instance {name} had {count} in flight at {at_s:.6f} s; its window was {window} at most")


def _check_capacity(name: str, records: list[RequestRecord], totals: EngineTotals, profile: Profile, notes: _Notes, *, loose: bool) -> None:
    """Compares the engine's reported peak of KV blocks with the records.

    A sequence that has its first token holds its prompt's blocks until its end, unless it is preempted or shares them.
    """
    allowed = min(profile.kv_capacity_tokens, profile.max_model_len)
    for record in records:
        if record.outcome is OutcomeKind.COMPLETED and record.prompt_tokens + record.output_tokens > allowed:
            length = record.prompt_tokens + record.output_tokens
            notes.add("capacity", f"request {record.request_id} took {length} tokens on {name}, which holds {allowed}")
    peak, whole = (
        totals.kv_blocks_peak,
        max((-(-record.prompt_tokens // profile.block_size) for record in records if record.output_tokens), default=0),
    )
    if not whole <= peak <= profile.kv_blocks:
        notes.add("capacity", f"instance {name} held {peak} KV blocks at most; one prompt took {whole}, and it has {profile.kv_blocks}")
    if totals.preemptions or loose:
        return
    spans = (
        (
            record.arrival_s + record.ttft_ms / 1000.0,
            record.arrival_s + record.total_ms / 1000.0,
            -(-(record.prompt_tokens + 1) // profile.block_size),
        )
        for record in records
        if record.outcome is OutcomeKind.COMPLETED and record.tpot_ms >= 0.0
    )
    for at_s, held in _held(spans):
        if held > peak:
            notes.add("capacity", f"instance {name} held {held} KV blocks or more at {at_s:.6f} s; by its own word {peak} at most")
