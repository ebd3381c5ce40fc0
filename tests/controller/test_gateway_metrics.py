"""Labels stay bounded, and what is exposed is true."""

import platform
from pathlib import Path
from typing import Any
from unittest import mock

from gateway_kit import chat, running
from message_kit import instance_view, system_snapshot

from hmas.controller.core.messages import Completion, SystemSnapshot
from hmas.controller.core.types import OutcomeKind
from hmas.controller.gateway.metrics_page import PAGE_S, MetricsPage
from hmas.controller.observability.metrics import LABEL_KEPT_S, MAX_TENANT_LABELS, OTHER, Metrics, package_version
from hmas.engines.base import EngineSnapshot


def completion(tenant: str = "t", outcome: OutcomeKind = OutcomeKind.COMPLETED, **fields: object) -> Completion:
    known: dict[str, Any] = {"request_id": "r", "sent_s": 1.0, "model": "m", "arrival_s": 0.0, "policy": "fcfs", "total_ms": 100.0}
    return Completion(tenant=tenant, outcome=outcome, **(known | fields))


def snapshot(policy: str = "fcfs") -> SystemSnapshot:
    load = {"queued": 3, "queued_tokens": 30, "oldest_wait_ms": 1500.0, "arrived_total": 5, "dispatched_total": 2}
    return system_snapshot(policy=policy, **load)


def page(metrics: Metrics, policy: str = "fcfs") -> str:
    return metrics.exposition(snapshot(policy), passing={}, held_s={}, bus_connected=True, bus_dropped=7)[0].decode()


def test_tenants_beyond_the_bound_share_a_label():
    configured = [f"known-{number}" for number in range(MAX_TENANT_LABELS)]
    metrics = Metrics(["acme", *configured])
    for name in configured:
        metrics.ended(completion(name))
    for number in range(MAX_TENANT_LABELS + 20):
        metrics.ended(completion(f"tenant-{number}"))
    metrics.ended(completion("acme"))
    text = page(metrics)
    labels = {line.split('tenant="')[1].split('"')[0] for line in text.splitlines() if line.startswith("hmas_requests_total")}
    assert len(labels - set(configured)) == MAX_TENANT_LABELS + 2, "configured ones take no label of the others"
    assert {"acme", OTHER} <= labels
    assert f'hmas_requests_total{{outcome="completed",tenant="{OTHER}"}} 20.0' in text
    metrics.know(["late"])
    metrics.ended(completion("late", ttft_ms=5.0))
    assert 'hmas_ttft_seconds_count{tenant="late"} 1.0' in page(metrics)


def test_a_tenant_that_has_not_asked_for_a_day_gives_its_label_to_the_next():
    metrics = Metrics()
    for number in range(MAX_TENANT_LABELS):
        metrics.ended(completion(f"tenant-{number}", sent_s=1000.0, ttft_ms=5.0))
    metrics.know(["tenant-2"])
    for name, after_s in (("tenant-0", LABEL_KEPT_S - 1.0), ("early", LABEL_KEPT_S - 1.0), ("late", LABEL_KEPT_S), ("later", LABEL_KEPT_S)):
        metrics.ended(completion(name, sent_s=1000.0 + after_s, ttft_ms=5.0))
    lines = page(metrics).splitlines()
    gone = [name for name in ("tenant-0", "tenant-1", "tenant-2", "tenant-3") if not any(f'tenant="{name}"' in line for line in lines)]
    assert gone == ["tenant-1"], "the first is no longer the one that has been quiet for longest, and the third is configured by now"
    counts = [line for line in lines if line.startswith("hmas_ttft_seconds_count")]
    assert {f'hmas_ttft_seconds_count{{tenant="{name}"}} 1.0' for name in (OTHER, "late", "later")} <= set(counts)
    assert len(counts) == MAX_TENANT_LABELS + 2, "as many as before, the configured one, and the rest"
    metrics.ended(completion("tenant-1", sent_s=1000.0 + LABEL_KEPT_S))
    assert 'hmas_requests_total{outcome="completed",tenant="tenant-1"} 1.0' in page(metrics), "it begins anew"


def test_what_did_not_happen_is_not_observed():
    metrics = Metrics()
    metrics.ended(completion(outcome=OutcomeKind.CANCELLED, output_tokens=3))
    metrics.ended(completion(queue_ms=20.0, ttft_ms=300.0, tpot_ms=12.0, output_tokens=9, slo_met=True))
    text = page(metrics)
    assert 'hmas_ttft_seconds_count{tenant="t"} 1.0' in text
    assert 'hmas_ttft_seconds_sum{tenant="t"} 0.3' in text
    assert 'hmas_queue_wait_seconds_sum{tenant="t"} 0.02' in text
    assert "hmas_request_duration_seconds_count 1.0" in text
    assert 'hmas_tokens_total{direction="output"} 12.0' in text
    assert 'hmas_slo_met_requests_total{tenant="t"} 1.0' in text


def test_only_the_policy_in_force_is_shown():
    metrics = Metrics()
    page(metrics, "edf")
    text = page(metrics, "wfq")
    assert 'hmas_policy_info{policy="wfq"} 1.0' in text
    assert "edf" not in text
    assert "hmas_queued_requests 3.0" in text
    assert "hmas_oldest_wait_seconds 1.5" in text
    assert "hmas_bus_dropped_messages 7.0" in text


def test_two_gateways_in_one_process_do_not_meet():
    Metrics().ended(completion())
    assert "hmas_requests_total{" not in page(Metrics())


def test_the_build_and_the_process_are_described():
    text = page(Metrics())
    build = next(line for line in text.splitlines() if line.startswith("hmas_build_info{"))
    assert f'python="{platform.python_version()}"' in build
    assert f'version="{package_version()}"' in build
    assert 'compiled="' in build
    assert build.endswith(" 1.0")
    for name in ("resident_memory_bytes", "cpu_seconds_total", "open_fds", "max_fds", "start_time_seconds"):
        (value,) = [float(line.split()[1]) for line in text.splitlines() if line.startswith(f"process_{name} ")]
        assert value > 0


def test_an_engine_that_is_down_shows_no_old_share_of_its_cache():
    metrics = Metrics()

    def shown(engine: EngineSnapshot) -> list[str]:
        found = system_snapshot(instance_view("a", engine=engine))
        text = metrics.exposition(found, passing={}, held_s={}, bus_connected=True, bus_dropped=0)[0].decode()
        return [line for line in text.splitlines() if line.startswith(("hmas_kv_usage_ratio{", "hmas_engine_up{"))]

    up = EngineSnapshot(engine="a", taken_s=1.0, healthy=True, kv_usage=0.5)
    down = EngineSnapshot(engine="a", taken_s=2.0, healthy=False)
    assert shown(down) == ['hmas_engine_up{instance="a"} 0.0']
    assert shown(up) == ['hmas_engine_up{instance="a"} 1.0', 'hmas_kv_usage_ratio{instance="a"} 0.5']
    assert shown(down) == ['hmas_engine_up{instance="a"} 0.0']


async def test_a_page_is_made_at_most_once_a_second_and_sorts_no_latencies(tmp_path: Path):
    async with running(tmp_path) as rig:
        await rig.post(chat(tokens=2))
        gateway, now_s = rig.gateway, rig.gateway.clock.now_s()
        with (
            mock.patch.object(gateway, "completions", mock.Mock(wraps=gateway.completions)) as completions,
            mock.patch.object(gateway, "clock", mock.Mock()) as clock,
        ):
            page = MetricsPage(gateway)
            made = []
            for later_s in (0.0, 0.5, PAGE_S):
                clock.now_s.return_value = now_s + later_s
                made.append(page.read()[0])
            assert completions.fairness.call_count == 2
            assert not completions.tenants.called, "the page shows none of what that sorts"
        assert made[1] is made[0]
        assert b'hmas_tenant_weight{tenant="default"} 1.0' in made[2], "a request of it ended in the last minute"
