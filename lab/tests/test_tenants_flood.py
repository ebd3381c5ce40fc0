"""Two tenants, one of which floods: the load, the figures, and one small run on real processes."""

from typing import Any

import msgspec
import pytest
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.runs import Runs
from hmas_lab.frontdoor.settings import QUICK
from hmas_lab.questions import Question
from hmas_lab.tenants.study import FLOODS, STEADY, FloodSettings, figures, flood_study, tenant_arrivals

from hmas.controller.core.types import Slo, TaskType
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.results import Result

QUESTIONS = [Question(f"What is the height of tower {i}?", TaskType.QA, 20 + i) for i in range(20)]
DOOR = msgspec.structs.replace(QUICK, ramp=(2.0, 10.0), ramp_s=8.0, drain_s=8.0)


def load():
    return DoorLoad(DOOR, QUESTIONS, load_mixture()[1])


def test_a_tenant_sends_the_same_requests_each_time_and_all_are_its_own():
    once, again = (tenant_arrivals(load(), 0, STEADY, 5.0, 4.0) for _ in range(2))
    assert once == again
    assert {arrival.tenant for arrival in once} == {STEADY}


def test_the_figures_count_what_met_its_targets():
    ended: dict[str, Any] = {
        "kind": "chat-1",
        "tenant": STEADY,
        "task_type": TaskType.QA,
        "size": "short",
        "prompt_tokens": 10,
        "wanted_tokens": 11,
        "slo": Slo(ttft_ms=2000, tpot_ms=60),
        "outcome": "completed",
        "tpot_ms": 20.0,
        "output_tokens": 11,
    }
    found = figures([Result(index=i, at_s=0.1 * i, ttft_ms=ttft_ms, **ended) for i, ttft_ms in enumerate((100.0, 200.0, 3000.0))])
    assert (found["sent"], found["good"], found["ttft_p50_ms"]) == (3, 2, 200.0)


@pytest.mark.slow
async def test_a_small_study_measures_both_tenants_and_shows_the_status(tmp_path):
    settings = FloodSettings(weights=(4.0,), leads_s=(0.0, 1.0), seconds=5.0)
    said: list[str] = []
    document = await flood_study(settings, load(), Runs(DOOR, load(), ("sim",), tmp_path, said.append), said.append)
    row, later = document["rows"]
    assert [one["lead_s"] for one in (row, later)] == [0.0, 1.0]
    assert later["alone"]["sent"] <= row["alone"]["sent"]
    assert row["alone"]["good"] > 0
    assert row["flood"]["sent"] > row["beside"]["sent"]
    lines = {line.split()[0]: line.split() for line in row["status"].splitlines() if line.split()[:1] in ([STEADY], [FLOODS])}
    assert all("of" in line and line[line.index("of") + 1] != "0" for line in lines.values()), row["status"]
    assert set(lines) == {STEADY, FLOODS}
