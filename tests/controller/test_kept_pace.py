"""Requests with loose TPOT targets leave room for stricter ones where that brings more in time."""

from math import inf

import msgspec
import pytest
from typing_kit import known

from hmas.controller.core.types import Controls, Estimates, Request, Slo
from hmas.controller.routing.registry import make_router
from hmas.controller.scheduling.admission.kept_pace import CHOSEN_EVERY_S, REFUSED_S, KeptPace
from hmas.controller.scheduling.admission.tpot_guard import TpotGuard
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.scheduler import Scheduler
from hmas.controller.scheduling.settings import SHIPPED, InstanceSpec, SchedulerSettings
from hmas.controller.simulation import Arrival, simulate
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile

ALONE_MS, SEQUENCE_MS, OUTPUT = 20.0, 3.0, 100.0
STRICT, MIDDLE, LOOSE = 50.0, 60.0, 90.0


def build() -> Scheduler:
    """One engine with a pace of 20 ms and 3 more for each sequence, as samples of 2 to 22 sequences have shown."""
    made = Scheduler(
        settings=SHIPPED, instances=[InstanceSpec(name="a", capacity_n_run=256)], router=make_router("least-loaded"), policy="fcfs"
    )
    made.set_controls("a", Controls(n_run=256))
    one = made.instances["a"]
    for number in range(400):
        batch = 2.0 + number % 21
        one.pace.decoded(ALONE_MS + SEQUENCE_MS * batch, batch, 32.0)
    one.token_ms = one.pace.token_ms(0.0)
    return made


def estimated(request: Request, _now_s: float) -> Estimates:
    slo = request.declared_slo
    assert slo is not None
    return Estimates(slo=slo, output_tokens=OUTPUT, output_tokens_upper=OUTPUT)


def entry(tpot_ms: float, *, stream: bool = True) -> QueueEntry:
    slo = Slo(ttft_ms=1000.0, tpot_ms=tpot_ms)
    request = Request(id="r", tenant="t", model="m", arrival_s=0.0, prompt_tokens=100, stream=stream, declared_slo=slo)
    return QueueEntry(request, estimated(request, 0.0), 0)


def after(rates: dict[float, float], *refused: float, seconds: float = 30.0) -> KeptPace:
    """A queue to which requests came by TPOT target and rate until now, and in which the guard holds back those of some targets."""
    made = KeptPace()
    for at_s, tpot_ms in sorted((number / rps, tpot_ms) for tpot_ms, rps in rates.items() for number in range(1, round(rps * seconds) + 1)):
        made.asked(entry(tpot_ms), at_s)
    for tpot_ms in refused:
        made.refused(entry(tpot_ms), leaves_room=False)
    made.look(list(build().instances.values()), seconds)
    return made


def test_room_is_left_for_the_target_at_which_most_is_in_time():
    # At 50 / 1.1 ms the engine has 8.5 sequences and 186 tokens/s, at 60 / 1.1 ms 11.5 and 211, at 90 / 1.1 ms 20.6 and 252.
    enough_of_middle = after({STRICT: 1.0, MIDDLE: 1.5, LOOSE: 1.0}, STRICT, MIDDLE)
    assert enough_of_middle.target_ms(entry(LOOSE), 30.0) == pytest.approx(MIDDLE, rel=0.03)
    few = after({STRICT: 0.5, MIDDLE: 0.3, LOOSE: 0.5}, STRICT)
    assert few.target_ms(entry(LOOSE), 30.0) == pytest.approx(STRICT, rel=0.03)
    assert few.target_ms(entry(MIDDLE), 30.0) == pytest.approx(STRICT, rel=0.03)
    mostly_loose = after({STRICT: 0.2, LOOSE: 4.0}, STRICT)
    assert mostly_loose.target_ms(entry(LOOSE), 30.0) == inf


def test_nobody_leaves_room_where_no_stricter_request_is_held_back():
    made = after({STRICT: 0.5, LOOSE: 0.5})
    assert made.target_ms(entry(LOOSE), 30.0) == inf
    made.refused(entry(STRICT), leaves_room=False)
    made.look(list(build().instances.values()), 30.0 + CHOSEN_EVERY_S)
    assert made.target_ms(entry(LOOSE), 31.0) < LOOSE
    assert made.target_ms(entry(STRICT), 31.0) == inf
    assert made.target_ms(entry(LOOSE), 31.0 + REFUSED_S) == inf


def test_of_those_that_leave_room_only_whole_answers_count_and_only_for_their_like():
    made = after({STRICT: 0.5, MIDDLE: 0.5, LOOSE: 0.5})
    for stream, whole_leaves, stream_leaves in ((True, False, False), (False, True, False)):
        made.refused(entry(MIDDLE, stream=stream), leaves_room=True)
        made.look(list(build().instances.values()), 30.0)
        assert (made.target_ms(entry(LOOSE, stream=False), 30.0) < LOOSE) is whole_leaves
        assert (made.target_ms(entry(LOOSE), 30.0) < LOOSE) is stream_leaves


def test_no_room_is_left_for_a_target_that_the_engine_cannot_keep():
    made = after({10.0: 2.0, LOOSE: 2.0}, 10.0)
    assert made.target_ms(entry(LOOSE), 30.0) == inf


def test_there_is_a_last_moment_while_the_load_is_easy():
    assert after({STRICT: 0.5, LOOSE: 0.5}, STRICT).is_easy
    assert not after({STRICT: 2.0, LOOSE: 2.0}, STRICT).is_easy


def test_a_whole_answer_counts_by_the_time_that_is_left_for_each_token():
    made = after({STRICT: 0.5, LOOSE: 0.5}, STRICT)
    # 1,000 ms for the first token are 10 more for each of the 99 others.
    assert made.target_ms(entry(STRICT - 10.1, stream=False), 30.0) == inf
    assert made.target_ms(entry(STRICT, stream=False), 30.0) < LOOSE


def test_strict_requests_are_in_time_beside_loose_ones_past_capacity():
    """On an engine that each sequence slows by a seventh; without this rule 48 of the 160 strict ones are in time, and 158 loose ones."""
    arrivals = []
    for number in range(320):
        slo = Slo(ttft_ms=2000.0, tpot_ms=STRICT if number % 2 else LOOSE)
        request = Request(id=f"{number:04d}", tenant="t", model="m", arrival_s=0.33 * number, prompt_tokens=100, declared_slo=slo)
        arrivals.append(Arrival(request=request, estimate=estimated, output_tokens=round(OUTPUT)))
    engine = EngineModel(msgspec.structs.replace(load_profile("demo-small"), decode_ms_per_seq=SEQUENCE_MS))
    scheduler = Scheduler(
        settings=SHIPPED, instances=[InstanceSpec(name="a", capacity_n_run=256)], router=make_router("default"), policy="robust-edf"
    )
    scheduler.set_controls("a", Controls(n_run=256))
    records = simulate(arrivals, {"a": engine}, scheduler).records
    strict, loose = (sum(record.slo_met for record in records if int(record.request_id) % 2 == odd) for odd in (1, 0))
    assert strict >= 80
    assert strict + loose >= 190


@pytest.mark.parametrize(
    ("kept_ms", "own_ms", "joins"), [(30.0, 90.0, False), (30.0, 300.0, True), (150.0, 300.0, False), (400.0, 300.0, True)]
)
def test_a_kept_target_never_opens_an_engine_that_the_own_target_closes(kept_ms: float, own_ms: float, joins: bool):
    made = Scheduler(
        settings=SchedulerSettings(tpot_guard=0.0),
        instances=[InstanceSpec(name="i0", capacity_n_run=64)],
        router=make_router("least-loaded"),
        policy="fcfs",
    )
    for number in range(60):
        request = Request(
            id=str(number), tenant="t", model="m", arrival_s=0.0, prompt_tokens=100, declared_slo=Slo(ttft_ms=1e6, tpot_ms=40.0)
        )
        made.submit(request, estimated(request, 0.0), 0.0)
    made.dispatch(0.0)
    one = made.instances["i0"]
    for number in range(600):
        batch = 2.0 if number % 2 else 60.0
        one.pace.decoded(40.0 + 160.0 * (batch - 2.0) / 58.0, batch, 32.0)
    one.token_ms = one.pace.token_ms(one.sequences)
    assert one.token_ms == pytest.approx(200.0, rel=0.05)
    # The engine cannot keep 30 ms with any batch, so that nobody leaves room for such requests there. It could keep 150.
    assert 30.0 < known(one.pace.best_ms()) < 60.0
    request = Request(id="r", tenant="t", model="m", arrival_s=0.2, prompt_tokens=10)
    entry = QueueEntry(request, Estimates(slo=Slo(ttft_ms=1e6, tpot_ms=own_ms), output_tokens=50.0, ttft_ms=2.0, tpot_ms=20.0), 1)
    assert TpotGuard(0.5).admits(entry, one, 0.2, late=False, flooding=(), kept_ms=kept_ms) is joins
