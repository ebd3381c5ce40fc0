"""A request stream drawn from the pool of real prompts: who asks what, when, and what the truth about it is."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from hmas.agents.perception.importance import importance_of
from hmas.controller.core.messages import RequestNotice
from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import Request, Slo, TaskType
from hmas.loadgen.arrivals import ArrivalSpec, arrival_times
from hmas.loadgen.dataset import Mixture
from hmas.loadgen.streams import stream
from hmas.loadgen.workload import pick
from hmas_lab.agents.asked import MAX_TOKENS, Pool, Prompt, notice_of

TIMEOUT_S = 600.0


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of a request. The scheduler is told none of it, unless an oracle tells.

    Attributes:
        slo: Targets of its true task type by Table 6 and Eq. 14: what it is scored by.
        importance: As the prompt says; no data labels it, so what perception reads counts as true.
        output_tokens: Length of its answer.
    """

    task: TaskType
    slo: Slo
    importance: float
    output_tokens: int


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request to come: what the scheduler sees of it, what the agents are told, and the truth."""

    text: str
    request: Request
    notice: RequestNotice
    truth: Truth
    kind: str


def shares(mixture: Mixture, pool: Pool) -> dict[tuple[str, TaskType], float]:
    """Weight of each kind of traffic and task type that the pool has prompts of."""
    found = {
        (name, task): kind.share * spec.weight
        for name, kind in mixture.kinds.items()
        for task, spec in kind.tasks.items()
        if pool.prompts.get(task)
    }
    return dict(sorted(found.items()))


def draw(pool: Pool, mixture: Mixture, spec: ArrivalSpec, *, seed: int, slo_scale: float, model: str, cap: int = MAX_TOKENS) -> list[Asked]:
    """Requests in order of arrival. The same arguments give the same requests.

    Times are drawn as `spec` says, kinds of traffic, task types and tenants by the mixture's shares, prompts evenly among those of a type,
    each once before any comes again: what was seen of a prompt before is worth much, and is not what is asked here. One of the pool's
    models serves the whole stream: which, follows from the seed. Prompts with answers of one model only keep that one's.
    """
    times = arrival_times(spec, stream(seed, "arrivals")).tolist()
    server = pool.models[int(stream(seed, "server").integers(len(pool.models)))] if pool.models else ""
    weights = shares(mixture, pool)
    places, tenants = (stream(seed, name).random(len(times)) for name in ("tasks", "tenants"))
    decks = {task: stream(seed, "prompts", number).permutation(len(found)) for number, (task, found) in enumerate(pool.prompts.items())}
    taken: Counter[TaskType] = Counter()
    found = []
    for number, at_s in enumerate(times):
        kind, task = pick(weights, places[number])
        choice = pool.prompts[task]
        prompt = choice[decks[task][taken[task] % len(choice)]]
        taken[task] += 1
        tenant = pick(mixture.kinds[kind].tenants, tenants[number])
        found.append(_asked(prompt, number, at_s, tenant=tenant, kind=kind, model=model, server=server, slo_scale=slo_scale, cap=cap))
    return found


def _asked(
    prompt: Prompt, number: int, at_s: float, *, tenant: str, kind: str, model: str, server: str, slo_scale: float, cap: int
) -> Asked:
    """The request that a prompt makes; `server` names the model whose answers count."""
    request_id = f"{number:08d}"
    notice = notice_of(prompt.text, model=model, request_id=request_id, tenant=tenant, sent_s=at_s, cap=cap)
    importance = importance_of(notice.excerpt, has_tools=notice.has_tools)
    request = Request(
        id=request_id,
        tenant=tenant,
        model=model,
        arrival_s=at_s,
        prompt_tokens=notice.prompt_tokens,
        max_output_tokens=cap,
        deadline_s=at_s + TIMEOUT_S,
    )
    slo = slo_for(prompt.task, importance, slo_scale)
    truth = Truth(task=prompt.task, slo=slo, importance=importance, output_tokens=prompt.answered_by(server, cap))
    return Asked(text=prompt.text, request=request, notice=notice, truth=truth, kind=kind)


def truths(stream_of: Sequence[Asked]) -> Mapping[str, Truth]:
    """The truth by request id."""
    return {one.request.id: one.truth for one in stream_of}
