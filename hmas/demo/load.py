"""The demo's requests: questions, lengths and times of the workload, in the bodies of real clients."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from hmas.controller.core.types import Slo
from hmas.loadgen.client_load import Clients, Terms
from hmas.loadgen.dataset import Mixture, PromptData
from hmas.loadgen.prompts import PromptWriter
from hmas.loadgen.streams import stream
from hmas.loadgen.workload import Arrival, WorkloadSpec, generate, pick

FORM_SHARES: Mapping[str, float] = MappingProxyType(
    {"chat-1": 0.3, "chat-3": 0.25, "chat-9": 0.15, "completion": 0.1, "tools": 0.08, "not-streamed": 0.07, "system-2000": 0.05}
)
TENANTS = ("aurora", "birch")
"""The two tenants; requests of the workload's other tenants are assigned to them in turn."""
UNDECLARED = Slo(ttft_ms=2000.0, tpot_ms=60.0)
"""Targets for requests that declare none: what a user of a chat window accepts. They are the same for every run."""


def demo_arrivals(spec: WorkloadSpec, mixture: Mixture, prompts: PromptData) -> list[Arrival]:
    """Draws a workload, half of it without `max_tokens` and half of it without declared targets, from two tenants.

    Times, questions and answer lengths are those of the specification; a history or tools make a prompt longer than its question.
    """
    plain = generate(spec, mixture, prompts)
    names = sorted({tenant for kind in mixture.kinds.values() for tenant in kind.tenants})
    owner = {name: TENANTS[place % len(TENANTS)] for place, name in enumerate(names)}
    clients = Clients([a.messages[0].content for a in plain], PromptWriter(prompts), seed=spec.seed)
    draws = stream(spec.seed, "client-forms").random((len(plain), 3)).tolist()
    found = []
    for index, (arrival, (form, caps, declares)) in enumerate(zip(plain, draws, strict=True)):
        cap, declared = arrival.max_tokens if caps < 0.5 else 0, declares < 0.5
        sent = clients.send(arrival, index, pick(FORM_SHARES, form), Terms(cap, declared, arrival.slo if declared else UNDECLARED))
        long = sent.prompt_tokens + sent.output_tokens >= mixture.long_total_tokens
        found.append(msgspec.structs.replace(sent, tenant=owner[arrival.tenant], size="long" if long else "short"))
    return found
