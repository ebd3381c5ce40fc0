"""What the evaluation covers, in numbers, and how its options are read."""

from typing import Annotated

import msgspec
from msgspec import Meta

from hmas_lab.paper.arms import ARMS, FEW, FIXED
from hmas_lab.paper.scenarios import ABLATED, SCENARIOS
from hmas_lab.paper.scenarios import FEW as FEW_SCENARIOS
from hmas_lab.simulated_rows import read_names


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model on the paper's eight A100 of 80 GB.

    Attributes:
        words: Its name, and how many GPUs serve one instance.
        profile: Of one instance. `instances`: how many there are.
        whole: Whether every arm and scenario is run; else a few of each.
    """

    words: str
    profile: str
    instances: int
    whole: bool = False

    def fleet(self, piece: float) -> str:
        """A piece of it, at least one instance, as `hmas simulate` takes it."""
        return f"{max(1, round(piece * self.instances))}x{self.profile}"


MODELS: dict[str, Model] = {
    "qwen3-8b": Model(words="Qwen3-8B, 8 instances of 1 GPU", profile="a100-qwen3-8b", instances=8, whole=True),
    "qwen3-14b": Model(words="Qwen3-14B, 4 instances of 2 GPUs", profile="a100-qwen3-14b-tp2", instances=4),
    "qwen3-30b": Model(words="Qwen3-30B-A3B, 4 instances of 2 GPUs", profile="a100-qwen3-30b-a3b-tp2", instances=4),
    # The profile is of the model's 3.1 release: the same architecture and size, so the same step times.
    "llama-3.3-70b": Model(words="Llama-3.3-70B, 2 instances of 4 GPUs", profile="a100-llama-3-70b-tp4", instances=2),
}
"""The paper gives no split; tensor parallelism is its choice for all beyond 8B, and 70B needs four GPUs for weights and KV."""
ABLATED_ON = "qwen3-30b"
"""The paper's own choice (Table 2)."""
SCREENED_SPAN = 0.5
"""Part of a scenario's length on which all fixed policies are tried, on a workload that is not scored; the best of them go on."""
GO_ON = 3


class PaperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation.

    Attributes:
        models: By name.
        scenarios: Of `SCENARIOS`.
        arms: Of `ARMS`.
        seeds: Workloads per scenario, seeds 1 and up; capacity and windows are found on another one, seed 0.
        piece: Share of the fleet that is simulated, at the same load for each instance.
        span: Factor on every scenario's length.
        backlog: Requests per instance on which capacity is measured.
        tpot_headroom: Mean TPOT target over the TPOT at the knee of the throughput curve: Table 6 is calibrated (E.5).
        caps: Windows that are tried, as far as the fleet's profiles allow them.
        data: Folder of the public data, empty where it is not there.
    """

    models: dict[str, Model] = msgspec.field(default_factory=lambda: dict(MODELS))
    scenarios: tuple[str, ...] = tuple(SCENARIOS)
    arms: tuple[str, ...] = tuple(ARMS)
    seeds: Annotated[int, Meta(ge=2, le=100)] = 5
    piece: Annotated[float, Meta(gt=0, le=1)] = 0.25
    span: Annotated[float, Meta(gt=0, le=10)] = 1.0
    backlog: Annotated[int, Meta(ge=20)] = 1000
    tpot_headroom: float = 2.0
    caps: tuple[int, ...] = (16, 24, 32, 48, 64, 96, 128, 192, 256)
    data: str = ""

    def span_s(self, scenario: str) -> float:
        """Length of a scenario's arrivals."""
        return SCENARIOS[scenario].span_s * self.span

    def fleet(self, model: str) -> str:
        """The engines that are simulated."""
        return self.models[model].fleet(self.piece)

    def scenarios_of(self, model: str) -> tuple[str, ...]:
        """Scenarios that a model is run through: those of the trace only where it is there."""
        there = (name for name in self.scenarios if self.data or not SCENARIOS[name].recorded)
        if self.models[model].whole:
            return tuple(there)
        wanted = {*FEW_SCENARIOS, *(ABLATED if model == ABLATED_ON else ())}
        return tuple(name for name in there if name in wanted)

    def arms_of(self, model: str, scenario: str) -> tuple[str, ...]:
        """Arms that meet there."""
        whole = self.models[model].whole
        ablates = scenario in ABLATED and (model == ABLATED_ON or len(self.models) == 1)
        return tuple(name for name in self.arms if (ablates if ARMS[name].role == "ablation" else whole or name in FEW))

    def left_out(self) -> tuple[str, ...]:
        """Scenarios that were asked for and cannot be run without the public data."""
        return tuple(name for name in self.scenarios if SCENARIOS[name].recorded and not self.data)


def quick(settings: PaperSettings) -> PaperSettings:
    """A look at it in minutes: two seeds, a fifth of each length, the fixed policies that the paper mainly evaluates."""
    arms = tuple(name for name in settings.arms if name not in FIXED or name in FEW)
    return msgspec.structs.replace(settings, seeds=2, span=0.2, arms=arms, caps=(24, 32, 48, 64, 96, 256))


def read_models(text: str) -> dict[str, Model]:
    """Models by names with commas between, empty for all.

    Raises:
        ConfigError: There is no such model.
    """
    return {name: MODELS[name] for name in read_names("models", text, tuple(MODELS))}


def read_scenarios(text: str) -> tuple[str, ...]:
    """Scenarios by names with commas between, empty for all.

    Raises:
        ConfigError: There is no such scenario.
    """
    return read_names("scenarios", text, tuple(SCENARIOS))


def read_arms(text: str) -> tuple[str, ...]:
    """Arms by names with commas between, empty for all.

    Raises:
        ConfigError: There is no such arm.
    """
    return read_names("arms", text, tuple(ARMS))
