"""The ablation on a live engine: the same real prompts to the whole of H-MAS, told about them by different believers, in blocks.

Requests declare nothing, so what the gateway aims at is what it is told. Prompts are sent as they are; answers are as long as a real
model's were, times a factor that lets this machine's engine serve enough of them.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas.demo.calibration import Calibration, Variant
from hmas.demo.outcome import DIGITS
from hmas.demo.site import EVERYBODY, Cast
from hmas.loadgen.arrivals import ArrivalSpec
from hmas.loadgen.dataset import Mixture
from hmas.loadgen.score import Score
from hmas.loadgen.workload import Arrival, Turn
from hmas.planning.report import rounded
from hmas_lab.agents.asked import Pool, Prompt, notice_of
from hmas_lab.agents.requests import Asked, Truth, draw
from hmas_lab.agents.settings import RULES
from hmas_lab.blocks import broken, drawn_order, run_each
from hmas_lab.compare import judged, plain, spread, twin_noise
from hmas_lab.demo_vllm.runs import FieldRuns
from hmas_lab.demo_vllm.settings import FieldSettings

Say = Callable[[str], None]
ARMS = ("none", RULES, "trained", "oracle")
TWIN = f"{RULES}-again"
"""The rules once more in every block: how far two runs of one arm lie apart is the noise that the others are judged by."""
STEERING = ("qos", "meta", "statera")
PROMPT_TOKENS = 1200
"""Longer prompts are left out: the engine's context is small."""
LONG_TOKENS = 400


def cast_of(arm: str, truths: str) -> Cast:
    """Who takes part in an arm's run; `truths` is the file that the oracle knows."""
    arm = RULES if arm == TWIN else arm
    if arm == "trained":
        return EVERYBODY
    if arm == "none":
        return Cast(agents=STEERING)
    words = ["hmas_lab", "teller", "--belief", arm, *(["--truths", truths] if arm == "oracle" else [])]
    return Cast(agents=STEERING, beside={"teller": words})


class PromptLoad:
    """Real prompts as a load for live runs. The same settings give the same arrivals."""

    def __init__(self, pool: Pool, mixture: Mixture, settings: FieldSettings, model: str) -> None:
        """Takes the prompts that fit the engine's context; answers are scaled by `settings.length_scale`."""
        self._settings = settings
        self._mixture = mixture
        self._model = model
        kept = {
            task: tuple(_scaled(one, settings.length_scale) for one in found if _prompt_tokens(one) <= PROMPT_TOKENS)
            for task, found in pool.prompts.items()
        }
        self._pool = msgspec.structs.replace(pool, prompts={task: found for task, found in kept.items() if found})

    def backlog(self) -> list[Arrival]:
        """Requests that are all there at once, for measuring capacity."""
        settings = self._settings
        spec = ArrivalSpec(mean_rps=settings.backlog / 10.0, duration_s=12.0, process="poisson")
        drawn = self._drawn(spec, 0, slo_scale=1.0)[: settings.backlog]
        return [msgspec.structs.replace(self._arrival(one), at_s=0.0) for one in drawn]

    def piece(self, number: int, *, mean_rps: float, duration_s: float, slo_scale: float) -> list[Arrival]:
        """Arrivals of one block."""
        return [self._arrival(one) for one in self.asked(number, mean_rps, duration_s, slo_scale)]

    def truths(self, number: int, *, mean_rps: float, duration_s: float, slo_scale: float) -> dict[str, Truth]:
        """What is true of the prompts of one block, by what the gateway shows of them."""
        return {one.notice.excerpt: one.truth for one in self.asked(number, mean_rps, duration_s, slo_scale)}

    def tenants(self) -> list[str]:
        """Everybody who may send."""
        return sorted({tenant for kind in self._mixture.kinds.values() for tenant in kind.tenants})

    def asked(self, number: int, mean_rps: float, duration_s: float, slo_scale: float) -> list[Asked]:
        """The requests of a block, each with its notice and the truth about it."""
        settings = self._settings
        spec = ArrivalSpec(
            mean_rps=mean_rps, duration_s=duration_s, process="bursty", period_s=settings.period_s, high=settings.high, low=settings.low
        )
        return self._drawn(spec, number, slo_scale=slo_scale)

    def _drawn(self, spec: ArrivalSpec, number: int, *, slo_scale: float) -> list[Asked]:
        seed = self._settings.seed * 1000 + number
        return draw(
            self._pool, self._mixture, spec, seed=seed, slo_scale=slo_scale, model=self._model, cap=self._settings.context_tokens // 4
        )

    def _arrival(self, one: Asked) -> Arrival:
        tokens = one.request.prompt_tokens + one.truth.output_tokens
        return Arrival(
            at_s=one.request.arrival_s,
            messages=(Turn("user", one.text),),
            prompt_tokens=one.request.prompt_tokens,
            output_tokens=one.truth.output_tokens,
            max_tokens=one.request.max_output_tokens or one.truth.output_tokens,
            task_type=one.truth.task,
            importance=one.truth.importance,
            slo=one.truth.slo,
            tenant=one.request.tenant,
            kind=one.kind,
            declares=False,
            size="long" if tokens >= LONG_TOKENS else "short",
        )


def _prompt_tokens(prompt: Prompt) -> int:
    return notice_of(prompt.text, model="any", request_id="", tenant="", sent_s=0.0).prompt_tokens


def _scaled(prompt: Prompt, factor: float) -> Prompt:
    lengths = {model: max(2, round(tokens * factor)) for model, tokens in prompt.output_tokens.items()}
    return msgspec.structs.replace(prompt, output_tokens=lengths)


class Ablation:
    """The runs of the live ablation, made by `FieldRuns`; `write` puts an oracle's truths where its process finds them."""

    def __init__(
        self,
        settings: FieldSettings,
        runs: FieldRuns,
        load: PromptLoad,
        *,
        write: Callable[[Mapping[str, Truth]], None],
        choose: Callable[[str, str], None],
        say: Say,
        stage: Say,
    ) -> None:
        self._settings = settings
        self._runs = runs
        self._load = load
        self._write = write
        self._choose = choose
        self._say = say
        self._stage = stage

    @property
    def names(self) -> tuple[str, ...]:
        """The runs of every block: each arm, and the rules twice."""
        return (*ARMS, TWIN)

    async def ground(self) -> Calibration:
        """Measures capacity and SLOs.

        Raises:
            DemoBroken: The engine does not serve.
        """
        self._stage("measuring capacity")
        return await self._runs.calibrate()

    async def block(self, number: int, ground: Calibration) -> dict[str, Any]:
        """One block, from 0: all arms on the same arrivals, in an order that is drawn for it; ready for JSON.

        Raises:
            DemoBroken: A process did not come up.
        """
        self._stage(f"block {number + 1}")
        span = self._settings.run_span
        piece = {"mean_rps": ground.mean_rps, "duration_s": span.duration_s, "slo_scale": ground.slo_scale}
        arrivals = self._load.piece(number + 1, **piece)
        self._write(self._load.truths(number + 1, **piece))
        order = drawn_order(self.names, seed=self._settings.seed, number=number)
        variants = {name: Variant(name=f"block-{number + 1}-{name}", policy=DEFAULT_POLICY, overdue="demote") for name in order}
        for name, variant in variants.items():
            self._choose(variant.name, name)
        made = await run_each(self._runs, variants, arrivals, span, agents=order, tell=self._tell)
        return {"number": number + 1, "arrivals": len(arrivals), "order": order, **made}

    def _tell(self, name: str, score: Score) -> None:
        self._say(f"{name}: {score.goodput_rps:.2f} good/s ({score.good} of {score.submitted}), ESG {score.esg_rate:.0f}/s")

    def document(self, ground: Calibration, blocks: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
        """Everything so far, as it is written to live.json."""
        return {
            "version": 1,
            **about,
            "complete": len(blocks) == self._settings.blocks,
            "settings": msgspec.to_builtins(self._settings),
            "calibration": rounded(msgspec.to_builtins(ground), DIGITS),
            "blocks": blocks,
            "summary": live_summary(blocks),
            "broken": broken(blocks),
        }


def live_summary(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row per arm: medians over blocks, ratios to the rules in the same block, and whether they exceed the noise."""
    found: dict[str, Any] = {"noise": {}, "rows": []}
    noises = {}
    for measure in ("goodput_rps", "esg_rate"):
        pairs = [(b["runs"][RULES][measure], b["runs"][TWIN][measure]) for b in blocks if {RULES, TWIN} <= set(b["runs"])]
        noises[measure] = twin_noise(pairs)
        ratios = [max(pair) / min(pair) - 1.0 for pair in pairs if min(pair) > 0.0]
        found["noise"][measure] = max(ratios) if ratios else None
    for name in (*ARMS, TWIN):
        made = [block for block in blocks if name in block["runs"]]
        row: dict[str, Any] = {"arm": name, "runs": len(made), "rejected": sum(block["rejected"].get(name, 0) for block in blocks)}
        for measure, noise in noises.items():
            values = [block["runs"][name][measure] for block in made]
            ratios = [_over_rules(block, name, measure) for block in made if RULES in block["runs"]]
            verdict = "baseline" if name in {RULES, TWIN} else judged(ratios, noise)
            row[measure] = {"spread": spread(values), "over_rules": spread(ratios), "verdict": verdict}
        for figure, quantile in (("ttft_ms_started", "p95"), ("tpot_ms", "p95")):
            row[f"{figure}_{quantile}"] = median(block["runs"][name][figure][quantile] for block in made) if made else None
        found["rows"].append(row)
    result: dict[str, Any] = plain(found)
    return result


def _over_rules(block: Mapping[str, Any], name: str, measure: str) -> float:
    """Over the mean of the rules' runs in the block; its own run is no yardstick for the rules' second."""
    names = [other for other in (RULES, TWIN) if other in block["runs"] and other != name]
    base = sum(block["runs"][other][measure] for other in names) / len(names) if names else 0.0
    return float(block["runs"][name][measure] / base) if base else 0.0
