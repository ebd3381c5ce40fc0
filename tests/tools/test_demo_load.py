"""The demo's requests and its classes."""

import pytest

from hmas.demo.outcome import ClassRow, class_table, worse_sentences
from hmas.demo.settings import FORM_SHARES, TENANTS, UNDECLARED, DemoSettings, demo_arrivals
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.workload import generate

SETTINGS = DemoSettings(periods=2, period_s=8.0)
SPEC = SETTINGS.workload(mean_rps=25.0, slo_scale=0.3)


@pytest.fixture(scope="module")
def arrivals():
    return demo_arrivals(SPEC, *load_mixture())


def share(arrivals, test):
    return sum(map(test, arrivals)) / len(arrivals)


def test_half_send_no_cap_and_half_declare_nothing(arrivals):
    assert len(arrivals) > 400
    assert share(arrivals, lambda a: a.max_tokens == 0) == pytest.approx(0.5, abs=0.08)
    assert share(arrivals, lambda a: not a.declares) == pytest.approx(0.5, abs=0.08)
    assert {a.slo for a in arrivals if not a.declares} == {UNDECLARED}
    assert all(("max_tokens" in a.body.document) == (a.max_tokens > 0) for a in arrivals)
    assert {a.tenant for a in arrivals} == set(TENANTS)


def test_bodies_come_in_their_shares(arrivals):
    for form, wanted in FORM_SHARES.items():
        assert share(arrivals, lambda a, form=form: a.kind == form) == pytest.approx(wanted, abs=0.07)
    assert sum(FORM_SHARES.values()) == pytest.approx(1.0)


def test_times_and_lengths_are_the_workload_s(arrivals):
    plain = generate(SPEC, *load_mixture())
    assert [a.at_s for a in arrivals] == [a.at_s for a in plain]
    assert [a.output_tokens for a in arrivals] == [a.output_tokens for a in plain]
    longer = [a.prompt_tokens > p.prompt_tokens for a, p in zip(arrivals, plain, strict=True) if a.kind in ("chat-9", "system-2000")]
    assert all(longer)


def row(name, ours, *baselines):
    good = {f"base-{place}": count for place, count in enumerate(baselines)} | {"hmas": ours}
    return ClassRow(kind="body", name=name, submitted=10, good=good)


def test_each_class_in_which_h_mas_is_worse_gets_a_sentence():
    rows = [row("chat-1", 8, 7, 8), row("tools", 5, 6, 2), row("chat-9", 2, 1, 9)]
    assert worse_sentences(rows) == [
        "H-MAS is worse at body chat-9: 2 of 10 requests are good, 9 under base-1.",
        "H-MAS is worse at body tools: 5 of 10 requests are good, 6 under base-0.",
    ]
    assert worse_sentences(rows[:1]) == ["H-MAS is worse than the best baseline in no class."]
    assert "body chat-9" in class_table(rows)
