import msgspec
import pytest

from hmas.controller.core.types import Slo, TaskType
from hmas.loadgen.results import Result, count_outcomes, is_good, read_results, write_lines
from hmas.loadgen.score import running_goodput, score

SLO = Slo(ttft_ms=1000, tpot_ms=50)


def result(index, at_s, *, ttft=500.0, tpot=20.0, outcome="completed", tenant="a", kind="conv", size="short", tokens=11):
    started = ttft >= 0
    return Result(
        index=index,
        at_s=at_s,
        kind=kind,
        tenant=tenant,
        task_type=TaskType.QA,
        size=size,
        prompt_tokens=100,
        wanted_tokens=tokens,
        slo=SLO,
        outcome=outcome,
        ttft_ms=ttft,
        tpot_ms=tpot if started else -1.0,
        total_ms=ttft + tpot * (tokens - 1) if started else 30.0,
        output_tokens=tokens if started else 0,
    )


def refused(index, at_s, outcome, **kwargs):
    return result(index, at_s, ttft=-1.0, outcome=outcome, **kwargs)


def run(results, **kwargs):
    return score(results, **({"warmup_s": 0.0, "arrivals_end_s": 10.0, "run_end_s": 12.0} | kwargs))


def test_every_kind_of_failure_is_in_the_denominator():
    kinds = ["rejected", "shed", "timed_out", "failed", "lost"]
    figures = run(
        [result(0, 1.0), result(1, 2.0, ttft=2000.0), result(2, 3.0, tpot=60.0)] + [refused(3 + i, 4.0, k) for i, k in enumerate(kinds)]
    )
    assert figures.submitted == 8
    assert (figures.completed, figures.rejected, figures.failed, figures.lost) == (3, 3, 1, 1)
    assert figures.good == 1
    assert figures.goodput_rate == 1 / 8
    assert figures.goodput_rps == pytest.approx(0.1)
    assert figures.ttft_compliance == 2 / 8
    assert figures.tpot_compliance == 2 / 8
    assert sum(figures.outcomes.values()) == 8


def test_a_broken_answer_is_not_good_however_fast_it_began():
    assert not is_good(result(0, 0.0, outcome="failed"))
    assert is_good(result(0, 0.0))


def test_warmup_is_not_scored():
    figures = run([result(0, 0.5, ttft=9000.0), result(1, 3.0)], warmup_s=2.0)
    assert figures.submitted == 1
    assert figures.span_s == 8.0
    assert figures.goodput_rate == 1.0


def test_never_started_requests_wait_to_the_end_in_the_percentiles():
    results = [result(i, 1.0, ttft=100.0) for i in range(9)] + [refused(9, 2.0, "shed")]
    figures = run(results)
    assert figures.ttft_ms.p50 == 100.0
    assert figures.ttft_ms.p99 > 8000.0
    assert figures.ttft_ms_started.p99 == 100.0


def test_gain_counts_only_what_completed():
    figures = run([result(0, 1.0), refused(1, 1.0, "shed"), result(2, 1.0, outcome="failed")])
    assert figures.esg == 100 + 2 * 11
    assert figures.esg_rate == pytest.approx(12.2)


def test_throughput_counts_completions_inside_the_span():
    figures = run([result(0, 1.0), result(1, 9.9, ttft=900.0)])
    assert figures.throughput_rps == pytest.approx(0.1)
    assert figures.output_tps == pytest.approx(1.1)


def test_classes_tenants_and_fairness():
    results = [
        result(0, 1.0),
        result(1, 1.0),
        result(2, 1.0, tenant="b", size="long", ttft=5000.0),
        refused(3, 1.0, "shed", tenant="b", size="long"),
    ]
    figures = run(results)
    assert set(figures.per_class) == {"conv-short", "conv-long"}
    assert figures.per_class["conv-short"].goodput_rate == 1.0
    assert figures.per_class["conv-long"].good == 0
    assert figures.per_tenant["b"].submitted == 2
    assert figures.jain_tenants == 0.5
    assert figures.per_task["QA"].submitted == 4


def test_a_tenant_whose_requests_starve_to_the_end_of_the_run_is_seen():
    results = [result(index, 1.0 + index, ttft=1500.0) for index in range(6)]
    starved = [msgspec.structs.replace(result(9, 1.0, ttft=-1.0, outcome="timed_out", tenant="b"), total_ms=-1.0)]
    assert run([*results, *starved]).fairness.jain == 0.5
    assert run([*results, refused(9, 1.0, "shed", tenant="b")]).fairness.jain == 1.0


def test_nothing_submitted_gives_zeros():
    figures = run([])
    assert figures.goodput_rate == figures.goodput_rps == 0.0
    assert figures.ttft_ms.p99 == 0.0


def test_running_goodput_is_by_the_time_of_the_end():
    results = [result(0, 0.0, ttft=100.0, tpot=10.0), result(1, 0.0, ttft=900.0, tpot=20.0), refused(2, 0.0, "shed")]
    assert running_goodput(results, 1.0, 3.0) == [(1.0, 1.0), (2.0, 1.0), (3.0, 0.0)]


def test_results_survive_the_file(tmp_path):
    results = [result(0, 1.0), refused(1, 2.0, "lost")]
    write_lines(tmp_path / "r.jsonl", results)
    assert read_results(tmp_path / "r.jsonl") == results
    assert count_outcomes(results)["lost"] == 1


def whole(index, total_ms, *, answers=1, tokens=11):
    found = result(index, 0.0, tokens=tokens)
    found.streamed, found.answers = False, answers
    found.ttft_ms = found.tpot_ms = -1.0
    found.total_ms = total_ms
    return found


def test_an_answer_that_is_not_streamed_is_judged_by_its_whole_time():
    assert is_good(whole(0, 1500.0))
    assert not is_good(whole(0, 1501.0))
    assert is_good(whole(0, 1500.0, answers=2, tokens=22)), "two answers come side by side"
    assert not is_good(whole(0, 1100.0, answers=11))
    figures = run([whole(0, 1400.0), whole(1, 9000.0), result(2, 1.0, ttft=300.0)])
    assert (figures.good, figures.ttft_compliance) == (2, pytest.approx(2 / 3))
    assert figures.ttft_ms.p99 == 300.0, "it has no first token to be timed"
