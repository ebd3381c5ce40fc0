"""Builds a language model's prompt: the long view in numbers, what runs, the allowed policies, recent outcomes. Pure.

The prompt holds no client text, only figures and names from the operator, so no request can influence the model. Tenant names are
left out, because they add nothing to the figures.
"""

import math
from collections.abc import Mapping, Sequence

from hmas.agents.meta.selectors.base import Reward, Situation
from hmas.agents.meta.selectors.rules import figures
from hmas.controller.core.messages import LongView
from hmas.controller.scheduling.policies.registry import COMMON_PARAMETERS, POLICIES

TASK = """You choose the queueing policy of a gateway in front of language model servers. A request is good when its first token (TTFT)
and the pace of the others (TPOT) both keep their targets. Choose the policy under which most requests of the coming minutes
will be good. A change has a cost and is judged by a simulation before it is made: propose one only where the figures speak
for it, else name the policy in force. Parameters are optional; those that are null keep their defaults. confidence is from 0
to 1. The reason is one short sentence that names the figures it stands on."""

MEANINGS = {
    "violation_rate": "share of requests that missed a target",
    "ttft_violation_rate": "of them by the first token",
    "tpot_violation_rate": "of them by the pace",
    "deadline_miss_share": "share whose first token was lost while waiting in the queue",
    "late_service": "share of served requests that were lost before their service began",
    "total_cv": "coefficient of variation of service times",
    "long_backlog_share": "share of the queue that is long requests",
    "mismatch": "demand beyond service, 0 none, 1 much",
    "fairness": "Jain index among tenants, 1 even",
    "arrival_rps": "arrivals per second",
    "goodput_rps": "good requests per second",
    "ttft_ms_p99": "99 % of first tokens within, ms",
}


def question(situation: Situation, lately: Sequence[Reward], defaults: Mapping[str, Mapping[str, float]]) -> str:
    """Builds the text for one evaluation.

    Args:
        situation: The current situation.
        lately: Outcomes of earlier choices, oldest first.
        defaults: By policy, the values of parameters that an answer leaves out, where they are not the policy's own defaults.
    """
    now = [f"- in force: {situation.current.label}, for {_span(situation.now_s - situation.since_s)}"]
    now += [f"- configured: {situation.start.label}"]
    parts = ["Policies that you may choose:", *(_policy(name, defaults.get(name, {})) for name in situation.allowed), _common(), ""]
    parts += ["Now:", *now, "", f"The last {situation.view.window_s:.0f} s:", *_figures(situation.view)]
    if lately:
        parts += ["", "What came of late, oldest first:"]
        parts += [f"- {one.situation.current.label}: {one.good:.1%} good of {one.requests}" for one in lately]
    return "\n".join(parts)


def _policy(name: str, defaults: Mapping[str, float]) -> str:
    policy = POLICIES[name]
    ranges = [
        f"{parameter} {policy.parameter_ranges[parameter][0]:g} to {policy.parameter_ranges[parameter][1]:g}, default {value:g}"
        for parameter, value in {**policy.default_parameters, **defaults}.items()
    ]
    return f"- {name}: {policy.summary}" + (f" (parameters: {'; '.join(ranges)})" if ranges else "")


def _common() -> str:
    told = "; ".join(f"{parameter} {low:g} to {high:g}" for parameter, (low, high) in COMMON_PARAMETERS.items())
    return f"- parameters of any policy, as configured where not given: {told} (share of the room of those running that a prompt may take)"


def _figures(view: LongView) -> list[str]:
    found = [f"- {name}: {_number(value)} ({MEANINGS[name]})" for name, value in figures(view).items()]
    found += [f"- arrival_dispersion: {_number(view.arrival_dispersion)} (variance over mean of arrivals, 1 is Poisson)"]
    found += [f"- burst_ratio: {_number(view.burst_ratio)} (largest second over the mean)"]
    found += [f"- prompt_mean, output_mean: {_number(view.prompt_mean)}, {_number(view.output_mean)} tokens"]
    found += [f"- queued: {view.queued}, ended: {view.ended}, tenants: {len(view.by_tenant)}"]
    if view.by_task:
        found += ["- task types: " + ", ".join(f"{name} {share:.0%}" for name, share in sorted(view.by_task.items(), key=lambda x: -x[1]))]
    return found + [
        f"- changed at {one.at_s - view.sent_s:.0f} s: {one.figure} {one.before:.3g} to {one.after:.3g}" for one in view.changes
    ]


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "unknown"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if math.isfinite(seconds) else "ever"
