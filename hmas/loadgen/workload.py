"""A workload: requests with tenants, texts, times, lengths and targets. Everything is derived from one seed."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from hmas.controller.core.slo import IMPORTANCE_MAX, IMPORTANCE_MIN, slo_for
from hmas.controller.core.types import Slo, TaskType
from hmas.engines.tokens import estimate_tokens
from hmas.loadgen.arrivals import ArrivalSpec, arrival_times
from hmas.loadgen.dataset import KindSpec, Mixture, PromptData, quantile
from hmas.loadgen.prompts import PromptWriter
from hmas.loadgen.streams import stream

K = TypeVar("K")


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One message of a chat."""

    role: str
    content: str


class ClientBody(msgspec.Struct, frozen=True, kw_only=True):
    """A request's body as its client sends it to an API path, if it is more than a streamed chat with a cap."""

    path: str
    document: dict[str, Any]

    @property
    def streamed(self) -> bool:
        """Whether the answer is streamed."""
        return bool(self.document.get("stream"))

    @property
    def outline(self) -> dict[str, Any]:
        """The part of the document that simulations need, without its content."""
        return {name: self.document[name] for name in ("stream", "n") if name in self.document}

    @property
    def answers(self) -> int:
        """Number of requested answers to the prompt (`n`)."""
        return int(self.document.get("n") or 1)


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a workload.

    Attributes:
        at_s: When it is sent, seconds from the start of the run.
        messages: The chat so far.
        prompt_tokens: Tokens of all messages, by `estimate_tokens`.
        output_tokens: The true output length. Only the engine gets it, not the gateway and the agents.
        max_tokens: The cap that the client declares: a property of its kind of traffic, not of this request's true length. 0: none.
        task_type, importance: Row of H-MAS Table 6.
        slo: The targets by which the request is judged.
        declares: Whether the client declares these targets.
        tenant: Its tenant.
        kind: Kind of traffic, such as `conv` or `code`.
        size: `short` or `long`, for the report.
        body: The body, if it is more than `messages` as a streamed chat.
    """

    at_s: float
    messages: tuple[Turn, ...]
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    task_type: TaskType
    importance: float
    slo: Slo
    tenant: str
    kind: str
    size: str = "short"
    declares: bool = True
    body: ClientBody | None = None


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The specification of a workload to draw.

    Attributes:
        arrivals: The arrival process.
        seed: Seed of all draws; each purpose has its own random stream.
        slo_scale: Factor on Table 6 for the operating point (H-MAS E.5).
        length_scale: Factor on prompt lengths; 1 keeps the published lengths.
        context_tokens: The engines' context: prompts are cut so that prompt and declared cap fit.
        max_output_tokens: Longer outputs and higher caps are cut to this; 0 for no cut.
    """

    arrivals: ArrivalSpec
    seed: int = 1
    slo_scale: Annotated[float, Meta(gt=0)] = 1.0
    length_scale: Annotated[float, Meta(gt=0)] = 1.0
    context_tokens: Annotated[int, Meta(ge=256)] = 8192
    max_output_tokens: Annotated[int, Meta(ge=0)] = 0


class Shape(NamedTuple):
    """One request before its text is written."""

    kind: str
    task: TaskType
    prompt_tokens: int
    output_tokens: int
    max_tokens: int


def generate(spec: WorkloadSpec, mixture: Mixture, prompts: PromptData) -> list[Arrival]:
    """Draws a workload, in order of arrival."""
    times = arrival_times(spec.arrivals, stream(spec.seed, "arrivals"))
    shapes = draw_shapes(spec, mixture, len(times))
    tenants = stream(spec.seed, "tenants").random(len(times))
    importances = draw_importances(spec.seed, len(times)).tolist()
    writer = PromptWriter(prompts)
    arrivals = []
    for i, (at_s, shape) in enumerate(zip(times.tolist(), shapes, strict=True)):
        text = writer.compose(shape.task, shape.prompt_tokens, stream(spec.seed, "text", i))
        arrivals.append(
            make_arrival(
                at_s=at_s,
                text=text,
                shape=shape,
                importance=importances[i],
                slo_scale=spec.slo_scale,
                tenant=pick(mixture.kinds[shape.kind].tenants, tenants[i]),
                long_total_tokens=mixture.long_total_tokens,
            )
        )
    return arrivals


def make_arrival(
    *, at_s: float, text: str, shape: Shape, importance: float, slo_scale: float, tenant: str, long_total_tokens: int
) -> Arrival:
    """Combines a drawn shape and its text; the prompt's length is that of the written text."""
    prompt_tokens = estimate_tokens(text)
    return Arrival(
        at_s=at_s,
        messages=(Turn("user", text),),
        prompt_tokens=prompt_tokens,
        output_tokens=shape.output_tokens,
        max_tokens=shape.max_tokens,
        task_type=shape.task,
        importance=importance,
        slo=slo_for(shape.task, importance, slo_scale),
        tenant=tenant,
        kind=shape.kind,
        size="long" if prompt_tokens + shape.output_tokens >= long_total_tokens else "short",
    )


def draw_importances(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Importance scores, uniform between 0.5 and 1 (H-MAS E.5), from a random stream of their own."""
    return IMPORTANCE_MIN + (IMPORTANCE_MAX - IMPORTANCE_MIN) * stream(seed, "importance").random(count)


def draw_shapes(spec: WorkloadSpec, mixture: Mixture, count: int) -> list[Shape]:
    """Kind, task type and lengths of each request.

    Lengths follow the kind's quantile tables exactly for any task mix, and still depend on the task type: a request's score is its task's
    level plus noise, and the rank of the score under the whole mix is the quantile that is looked up.
    """
    kinds = stream(spec.seed, "kinds").random(count)
    tasks = stream(spec.seed, "tasks").random(count)
    noise = stream(spec.seed, "lengths").standard_normal((count, 2)) * mixture.level_spread
    shares = {name: kind.share for name, kind in mixture.kinds.items()}
    weights = {name: {t: s.weight for t, s in kind.tasks.items()} for name, kind in mixture.kinds.items()}
    shapes = []
    for i in range(count):
        name = pick(shares, kinds[i])
        kind = mixture.kinds[name]
        task = pick(weights[name], tasks[i])
        level = kind.tasks[task]
        prompt_rank = score_rank(kind, "prompt_level", level.prompt_level + noise[i, 0], mixture.level_spread)
        output_rank = score_rank(kind, "output_level", level.output_level + noise[i, 1], mixture.level_spread)
        prompt, output = quantile(kind.prompt_tokens, np.array([prompt_rank]))[0], quantile(kind.output_tokens, np.array([output_rank]))[0]
        cap = min(kind.max_tokens, spec.max_output_tokens or kind.max_tokens)
        shapes.append(fit(Shape(name, task, int(prompt * spec.length_scale), int(output), cap), spec.context_tokens))
    return shapes


def fit(shape: Shape, context_tokens: int) -> Shape:
    """Cuts the shape to an engine's context: the cap to a quarter of it, the output to the cap, the prompt to the rest.

    A twentieth of the context stays free, because the engine's own tokenizer and chat template count slightly differently.
    """
    cap = min(shape.max_tokens, context_tokens // 4)
    room = int(context_tokens * 0.95) - cap
    return shape._replace(
        prompt_tokens=max(1, min(shape.prompt_tokens, room)), output_tokens=max(1, min(shape.output_tokens, cap)), max_tokens=cap
    )


def score_rank(kind: KindSpec, level: str, score: float, spread: float) -> float:
    """Rank of a length score among all scores of its kind, 0 to 1 (distribution function of a mixture of normals)."""
    total = sum(task.weight for task in kind.tasks.values())
    below = sum(t.weight * 0.5 * (1.0 + math.erf((score - getattr(t, level)) / (spread * math.sqrt(2.0)))) for t in kind.tasks.values())
    return below / total


def pick(weights: Mapping[K, float], u: float) -> K:
    """Selects a key by `u` (0 to 1) with probability proportional to its weight, in the order of the keys."""
    mark = u * sum(weights.values())
    for key, weight in weights.items():
        mark -= weight
        if mark < 0:
            return key
    return next(reversed(list(weights)))
