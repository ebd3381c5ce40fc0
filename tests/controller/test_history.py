"""Default estimates: the nearest cell with enough in it, then wider ones, then fixed defaults."""

import math
import random
import statistics

import msgspec
import pytest

from hmas.controller.core.messages import Completion
from hmas.controller.core.slo import TargetTable
from hmas.controller.core.types import Estimates, OutcomeKind, Request, Slo, TaskType
from hmas.controller.scheduling.default_estimates import BUCKET_EDGES, History, bucket, target_step


def request(prompt=100, tenant="t", cap=None, slo=None, model="m", half=""):
    given = {"prompt_tokens": prompt, "max_output_tokens": cap, "declared_slo": slo, "half_declared": half}
    return Request(id="r", tenant=tenant, model=model, arrival_s=0.0, **given)


def completion(output, prompt=100, tenant="t", outcome=OutcomeKind.COMPLETED, ttft=150.0, tpot=20.0, target=0.0, model="m", declared=True):
    return Completion(
        request_id="r",
        sent_s=0.0,
        tenant=tenant,
        model=model,
        outcome=outcome,
        arrival_s=0.0,
        policy="fcfs",
        prompt_tokens=prompt,
        output_tokens=output,
        service_ttft_ms=ttft,
        tpot_ms=tpot,
        ttft_slo_ms=target,
        ttft_declared=declared and target != 0.0,
    )


def test_buckets_have_their_edges_in_the_upper_one():
    assert [bucket(edge - 1) for edge in BUCKET_EDGES] == [0, 1, 2, 3, 4]
    assert [bucket(edge) for edge in BUCKET_EDGES] == [1, 2, 3, 4, 5]


def test_nothing_learned_gives_the_fixed_defaults():
    made = History().estimate(request())
    fixed = Estimates(slo=made.slo)
    assert (made.output_tokens, made.ttft_ms, made.tpot_ms, made.source) == (fixed.output_tokens, fixed.ttft_ms, fixed.tpot_ms, "default")
    assert made.task_type is TaskType.UNKNOWN


def test_a_tenants_own_past_counts_first_then_the_bucket_then_all():
    history = History()
    for i in range(20):
        history.learn(completion(10 + i % 3, tenant="quick"))
        history.learn(completion(500, tenant="wordy"))
    assert history.estimate(request(tenant="quick")).output_tokens == 11
    assert history.estimate(request(tenant="wordy")).output_tokens == 500
    stranger = history.estimate(request(tenant="new"))
    assert stranger.source == "history"
    assert 10 <= stranger.output_tokens <= 500
    assert history.estimate(request(tenant="quick", prompt=9000)).source == "history"


def test_each_model_is_taken_for_itself_and_a_new_one_for_all():
    """A small chat model and a large one that reasons, from one tenant, with prompts of one length and one declared target."""
    history, slo = History(), Slo(ttft_ms=2000.0, tpot_ms=50.0)
    for _ in range(64):
        history.learn(completion(60, model="chat", ttft=40.0, tpot=4.0, target=2000.0))
        history.learn(completion(6000, model="reasons", ttft=2000.0, tpot=200.0, target=2000.0))
    for declared in (slo, None):
        for tenant in ("t", "new"):
            for prompt in (100, 5000):
                chat, reasons = (history.estimate(request(prompt, tenant, slo=declared, model=model)) for model in ("chat", "reasons"))
                assert (chat.output_tokens, chat.output_tokens_upper, chat.ttft_ms, chat.tpot_ms) == (60, 60, 40.0, 4.0)
                assert (reasons.output_tokens, reasons.ttft_ms, reasons.tpot_ms) == (6000, 2000.0, 200.0)
    for _ in range(8):
        assert history.estimate(request(model="new")).output_tokens_upper == 6000, "as all models together until eight are known"
        history.learn(completion(200, model="new"))
    assert history.estimate(request(model="new")).output_tokens_upper == 200


def test_too_few_teach_nothing():
    history = History()
    for _ in range(7):
        history.learn(completion(10))
    assert history.estimate(request()).source == "default"
    history.learn(completion(10))
    assert history.estimate(request()).source == "history"


def test_upper_bound_times_and_the_clients_cap():
    history = History()
    for i in range(50):
        history.learn(completion(i + 1, ttft=100.0 + i % 2 * 100, tpot=-1.0))
    made = history.estimate(request())
    assert made.output_tokens == 26
    assert 45 <= made.output_tokens_upper <= 47
    assert made.ttft_ms == pytest.approx(150.0)
    assert made.tpot_ms == Estimates(slo=made.slo).tpot_ms
    capped = history.estimate(request(cap=20))
    assert (capped.output_tokens, capped.output_tokens_upper) == (20, 20)


def test_only_answers_teach():
    history = History()
    for _ in range(20):
        history.learn(completion(10, outcome=OutcomeKind.FAILED))
        history.learn(completion(0))
    assert len(history) == 0


@pytest.mark.parametrize("outcome", [OutcomeKind.CANCELLED, OutcomeKind.TIMED_OUT, OutcomeKind.FAILED])
def test_an_answer_that_broke_off_counts_where_it_is_longer_than_most(outcome: OutcomeKind):
    history = History()
    for _ in range(7):
        history.learn(completion(100))
    history.learn(completion(900, outcome=outcome))
    assert history.estimate(request()).source == "default", "nothing is known yet that it could be longer than"
    for _ in range(50):
        history.learn(completion(100))
    before = history.estimate(request())
    for output in (1, 99, 100):
        history.learn(completion(output, outcome=outcome))
    assert history.estimate(request()) == before
    for _ in range(20):
        history.learn(completion(900, outcome=outcome, ttft=9000.0, tpot=9000.0))
    after = history.estimate(request())
    assert (after.output_tokens, after.output_tokens_upper) == (100, 900)
    assert (after.ttft_ms, after.tpot_ms) == (before.ttft_ms, before.tpot_ms), "only its length counts"


def test_answers_that_break_off_at_random_raise_no_length_above_the_true_one():
    """Of lengths with a 90 % quantile of 359 tokens a third breaks off."""
    history, without, rng = History(), History(), random.Random(1)
    medians, uppers, uppers_without = [], [], []
    for _ in range(20_000):
        length, left = round(rng.lognormvariate(4.6, 1.0)) + 1, round(rng.expovariate(1 / 300)) + 1
        outcome = OutcomeKind.COMPLETED if length <= left else OutcomeKind.CANCELLED
        history.learn(completion(min(length, left), outcome=outcome))
        if outcome is OutcomeKind.COMPLETED:
            without.learn(completion(length))
        made = history.estimate(request())
        medians.append(made.output_tokens)
        uppers.append(made.output_tokens_upper)
        uppers_without.append(without.estimate(request()).output_tokens_upper)
    assert statistics.fmean(medians[100:]) < math.exp(4.6)
    assert 1.1 * statistics.fmean(uppers_without[100:]) < statistics.fmean(uppers[100:]) < 359


def test_declared_targets_are_taken_and_the_table_is_scaled():
    slo = Slo(ttft_ms=123, tpot_ms=45)
    twice = History(TargetTable(scale=2.0))
    assert twice.estimate(request(slo=slo)).slo == slo
    assert twice.estimate(request()).slo.ttft_ms == 2 * History().estimate(request()).slo.ttft_ms
    assert History(TargetTable(ttft_most_ms=2000.0)).estimate(request()).slo.ttft_ms == 2000.0


def test_who_declares_a_target_is_taken_for_its_like():
    """Chats with 2 s to their first token and reports with 20 s, from prompts of one length."""
    history = History()
    for number in range(40):
        history.learn(completion(50 + number % 3, target=2000.0))
        history.learn(completion(900 + number % 3, target=20_000.0))
    chat, report = (history.estimate(request(slo=Slo(ttft_ms=target, tpot_ms=50.0))) for target in (2000.0, 20_000.0))
    assert (chat.output_tokens, report.output_tokens) == (51.0, 901.0)
    near = history.estimate(request(slo=Slo(ttft_ms=1900.0, tpot_ms=50.0)))
    assert near.output_tokens == 51.0, "within the same step"
    # Another tenant's past counts where its own has nothing of the kind.
    assert history.estimate(request(tenant="new", slo=Slo(ttft_ms=20_000.0, tpot_ms=50.0))).output_tokens == 901.0
    for silent in (request(), request(slo=Slo(ttft_ms=300.0, tpot_ms=50.0))):
        assert history.estimate(silent).output_tokens in range(50, 903), "no target, or one that nobody had: all of its length"
    mixed = History()
    for one in (completion(10), completion(30)) * 8:
        mixed.learn(one)
    assert mixed.estimate(request(slo=Slo(ttft_ms=2000.0, tpot_ms=50.0))).output_tokens == mixed.estimate(request()).output_tokens


def test_a_target_that_the_client_did_not_declare_is_no_kind():
    """Who declares a TPOT target alone has a TTFT target of the table, which changes with the task type that agents name."""
    history = History()
    for _ in range(20):
        history.learn(completion(50, target=2000.0))
        history.learn(completion(700, target=2000.0, declared=False))
    both, tpot_alone = request(slo=Slo(ttft_ms=2000.0, tpot_ms=50.0)), request(slo=Slo(ttft_ms=2000.0, tpot_ms=50.0), half="tpot")
    assert history.estimate(both).output_tokens_upper == 50.0
    assert history.estimate(tpot_alone) == msgspec.structs.replace(history.estimate(request()), slo=Slo(ttft_ms=2000.0, tpot_ms=50.0))
    assert history.estimate(request(slo=Slo(ttft_ms=2000.0, tpot_ms=90.0), half="ttft")).output_tokens_upper == 50.0


def test_a_kind_counts_when_it_has_been_seen_eight_times():
    history, slo = History(), Slo(ttft_ms=2000.0, tpot_ms=50.0)
    for _ in range(30):
        history.learn(completion(700, target=20_000.0))
    for _ in range(7):
        history.learn(completion(50, target=2000.0))
    assert history.estimate(request(slo=slo)).output_tokens == 700.0
    history.learn(completion(50, target=2000.0))
    assert history.estimate(request(slo=slo)).output_tokens == 50.0


def test_steps_of_the_target_are_half_octaves_and_nonsense_has_one_too():
    assert target_step(1500.0) == target_step(2047.0) == target_step(2048.0) - 1 == target_step(2896.0) - 1 == target_step(2897.0) - 2
    assert target_step(4096.0) == target_step(2048.0) + 2
    assert [target_step(odd) for odd in (0.0, -5.0, 1.0)] == [0, 0, 0]
    assert target_step(float("inf")) == target_step(1e300) == target_step(1e9)
    history = History()
    for odd in (float("nan"), float("inf"), -1.0):
        history.learn(completion(10, target=odd))
    assert history.estimate(request(slo=Slo(ttft_ms=float("inf"), tpot_ms=1.0))).output_tokens > 0


def test_the_table_is_bounded():
    history = History()
    for i in range(6000):
        history.learn(completion(10, tenant=f"t{i}"))
    assert len(history) <= 8192
    assert history.estimate(request(tenant="t5999")).source == "history"


def test_only_the_last_64_count_and_the_figures_kept_are_those_of_a_recount():
    history, rng = History(), random.Random(3)
    seen = []
    for _ in range(500):
        output, ttft = rng.randint(1, 300), rng.choice([rng.uniform(1.0, 900.0), 3e6])
        seen.append((output, ttft))
        history.learn(completion(output, ttft=ttft))
        if len(seen) >= 8:
            made, last = history.estimate(request()), seen[-64:]
            outputs = sorted(output for output, _ in last)
            assert made.output_tokens == outputs[len(outputs) // 2]
            assert made.ttft_ms == pytest.approx(statistics.fmean(ttft for _, ttft in last), rel=1e-9)
