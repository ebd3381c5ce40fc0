"""For tests of comparisons on one vLLM: a trace, short runs, and the engine model in virtual time in the place of the engine."""

from collections import Counter

import msgspec
import numpy as np
from hmas_lab.demo_vllm.runs import FieldRuns
from hmas_lab.onvllm.comparison import Comparison
from hmas_lab.onvllm.tenants import SharedLoad

from hmas.demo.calibration import run_virtual
from hmas.demo.live import LiveRun
from hmas.engines.sim.profile import faster, load_profile
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.results import RunSummary, count_outcomes
from hmas.loadgen.score import score
from hmas.loadgen.traces import Trace, TraceRow

PROFILE = faster(load_profile("demo-small"), 3.0)
RNG = np.random.default_rng(7)
TRACE = Trace(
    source="drawn",
    format="azure",
    rows=[
        TraceRow(at_s=i / 6.0, prompt_tokens=int(prompt), output_tokens=int(output))
        for i, (prompt, output) in enumerate(zip(RNG.integers(100, 3000, 3000), RNG.integers(8, 600, 3000), strict=True))
    ],
)
SMALL = {"backlog": 60, "length_scale": 0.05, "capacity_caps": (8, 16), "capacity_rounds": 1, "sweep_caps": (8, 16), "period_s": 2.0}


def small(settings):
    """The settings with runs short enough for a test."""
    return msgspec.structs.replace(settings, field=msgspec.structs.replace(settings.field, **SMALL))


class Engine:
    """Runs in virtual time; those named in `spoilt` come back as if the machine had stood still, so many times."""

    def __init__(self, spoilt=()):
        self.variants = []
        self.with_agents = []
        self.spoilt = Counter(dict(spoilt))

    async def __call__(self, variant, arrivals, span, *, agents=False):
        self.variants.append((variant, arrivals))
        self.with_agents += [variant.name] if agents else []
        results, end_s = run_virtual(arrivals, PROFILE, variant, engines=1)
        self.spoilt[variant.name] -= 1
        return LiveRun(
            variant=variant,
            score=score(results, warmup_s=span.warmup_s, arrivals_end_s=span.duration_s, run_end_s=end_s),
            summary=RunSummary(
                started_s=0.0,
                elapsed_s=end_s,
                max_gap_s=0.31 if self.spoilt[variant.name] >= 0 else 0.29,
                outcomes=count_outcomes(results),
            ),
            results=results,
            samples=[],
            decisions=[],
            verdicts=[],
            actions=[],
            status={},
            broken=[],
        )


async def document_of(contest, engine):
    """The whole comparison's."""
    load = SharedLoad(TRACE, contest.field, *load_mixture())
    said: list[str] = []
    runs = Comparison(contest, FieldRuns(engine, contest.field, load, said.append), load, say=said.append, stage=said.append)
    ground = await runs.ground()
    made = [await runs.block(number, ground) for number in range(contest.field.blocks)]
    return runs.document(ground, made, {"elapsed_s": 0.0})
