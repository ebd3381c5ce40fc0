"""Uses those answers of agents that have proven right, scores all of them, and reports when one is set aside or used again."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from hmas.controller.control.agent_scores import BOUNDS, COSTS, LENGTHS, WINDOWS, AgentScores, Standing
from hmas.controller.control.estimates import Declared, bounded_forecast, covered_upper, with_cost, with_features, within_targets
from hmas.controller.control.resolve import STATERA
from hmas.controller.core.messages import RequestCost, RequestFeatures
from hmas.controller.core.slo import TargetTable
from hmas.controller.core.types import Estimates, OutcomeKind, Request
from hmas.controller.gateway.control_loop.apply import Control
from hmas.controller.observability.defaults import DispatchedOnDefaults
from hmas.controller.observability.observer import Observers
from hmas.controller.scheduling.dispatch import FENCE, PAUSED
from hmas.controller.scheduling.instances.kv_fence import upper_output
from hmas.controller.scheduling.queue.model_queue import GUARD, WINDOW
from hmas.controller.scheduling.results import Dispatch, Ended
from hmas.controller.scheduling.scheduler import Scheduler

RELIEVED_EVERY_S = 10.0
"""Shortest time between two events about relieved dispatches with the same reason; the metric counts all of them."""
CAUSES: Mapping[str, str] = {
    WINDOW: "the window is too small",
    GUARD: "the TPOT guard expected targets to be missed that are kept with room to spare",
    PAUSED: "the TPOT guard pauses, since it made too many requests late beside engines that can do all that comes",
    FENCE: "the forecast of the KV cache is too full: the engine reports less than half in use",
}


@dataclass(slots=True)
class Answers:
    """The answers of the agents and of the gateway's own history about one request.

    Attributes:
        shape: The shape of the request (`shape_of`).
        default: The history's estimate at its arrival.
        asked: Whether the agents are asked about it; false until it is known not to be sent at once.
        forecast: Perception's lengths, None before it answered.
        cost: Prediction's answer, None before it answered; without the times that nothing measures, those without load.
    """

    shape: str
    default: Estimates
    asked: bool = False
    forecast: Estimates | None = None
    cost: RequestCost | None = None


class AgentWatch:
    """The scores of all agents, over all requests."""

    def __init__(
        self, observer: Observers, control: Control, scores: AgentScores, *, targets: TargetTable, on_defaults: DispatchedOnDefaults
    ) -> None:
        """`targets`: those of requests that declare none."""
        self.scores = scores
        self._observer = observer
        self._control = control
        self._targets = targets
        self._on_defaults = on_defaults
        self._reported_s: dict[str, float] = {}

    def with_features(self, now: Estimates, features: RequestFeatures, answers: Answers, request: Request, declared: Declared) -> Estimates:
        """The estimates after perception's answer. Its lengths order the queue; they bind the KV fence only once they have proven right.

        Its targets are kept within the range that `TargetTable` allows.
        """
        features = within_targets(features, self._targets)
        answers.forecast = bounded_forecast(features, request.output_limit, request.sequences)
        if self.scores.lengths.aside:
            return with_features(now, features, declared, now.output_tokens, now.output_tokens_upper, proven=now.proven)
        forecast = answers.forecast
        if self.scores.proven(answers.shape):
            upper = covered_upper(forecast, answers.default, inconsistent=self.scores.inconsistent(answers.shape))
            return with_features(now, features, declared, forecast.output_tokens, upper, proven=True)
        return with_features(now, features, declared, forecast.output_tokens, now.output_tokens_upper, proven=False)

    def with_cost(self, now: Estimates, cost: RequestCost, answers: Answers) -> Estimates:
        """The estimates after prediction's answer. While its times under load are worse than the history's, only those without load count.

        The mean over unlike instances may be wrong where each instance's own times are right.
        """
        answers.cost = msgspec.structs.replace(cost, alone_ttft_ms={}, alone_tpot_ms={}) if cost.alone_ttft_ms else cost
        after = with_cost(now, cost)
        return msgspec.structs.replace(now, alone=after.alone) if self.scores.costs.aside else after

    def dispatched(self, dispatch: Dispatch, scheduler: Scheduler, answers: Answers | None, now_s: float) -> None:
        """Scores the agents after a dispatch; the scheduler already counts the request as in flight."""
        name = dispatch.instance
        if answers is not None and not dispatch.entry.resent:
            self._on_defaults.count(now_s, asked=answers.asked, features=answers.forecast is not None, cost=answers.cost is not None)
        for proposal in self._control.proposals(name):
            relieved = (dispatch.relieved == WINDOW and proposal.sets_window) or (dispatch.relieved == GUARD and proposal.tightens_guard)
            # A request alone may have more sequences than the window.
            crowded = scheduler.in_flight(name) > 1 and 0 < proposal.n_run < scheduler.sequences(name)
            held = crowded and scheduler.is_half_empty(name, now_s)
            if self.scores.dispatched(proposal.agent, held=held, relieved=relieved):
                contest = self.scores.windows[proposal.agent]
                self._report(Standing(proposal.agent, WINDOWS, contest))
                self._set_aside(proposal.agent, WINDOWS, aside=contest.aside)
        if dispatch.relieved and now_s - self._reported_s.get(dispatch.relieved, float("-inf")) >= RELIEVED_EVERY_S:
            self._reported_s[dispatch.relieved] = now_s
            cause = CAUSES.get(dispatch.relieved, "no other request could use the slot")
            self._observer.note(
                "dispatch.relieved", name, after=dispatch.entry.request.id, reason=f"{dispatch.reason}: {cause}", severity="warning"
            )

    def ended(self, answers: Answers, ended: Ended, *, capped: bool) -> None:
        """Scores the agents after a request has ended. `capped`: its output was cut at a limit, so its own length is unknown."""
        if ended.kind is not OutcomeKind.COMPLETED or ended.output_tokens < 1:
            return
        if not capped:
            self._length_known(answers, ended)
        cost = answers.cost
        if cost is None or ended.service_ttft_ms <= 0.0 or ended.tpot_ms <= 0.0:
            return
        # As policies use them: not the times of the instance that served it.
        default, predicted = answers.default, with_cost(answers.default, cost)
        measured = (ended.service_ttft_ms, ended.tpot_ms)
        if self.scores.timed((predicted.ttft_ms, predicted.tpot_ms), (default.ttft_ms, default.tpot_ms), measured):
            self._report(Standing("prediction", COSTS, self.scores.costs))

    def _length_known(self, answers: Answers, ended: Ended) -> None:
        """Scores the length forecast, and the bound on the length."""
        scores, tokens = self.scores, ended.output_tokens
        if answers.forecast is not None and scores.answered(answers.shape, answers.forecast, answers.default, tokens):
            self._report(Standing("perception", LENGTHS, scores.lengths))
        bounds = self._control.proposed_bounds()
        if not bounds:
            return
        request, was_aside = ended.entry.request, scores.bounds.aside
        upper, default = (upper_output(request, ended.predicted, some) for some in (bounds, ()))
        if scores.bounded(upper, default, tokens):
            self._set_aside(STATERA, BOUNDS, aside=not scores.bounds.proven)
        if scores.bounds.aside is not was_aside:
            self._report(Standing(STATERA, BOUNDS, scores.bounds))

    def _set_aside(self, agent: str, answers: str, *, aside: bool) -> None:
        """Sets an agent's windows or length bounds aside, or uses them again: later in the loop, because a dispatch may be in progress."""
        asyncio.get_running_loop().call_soon(partial(self._control.set_aside, agent, answers, aside=aside))

    def _report(self, standing: Standing) -> None:
        aside = standing.contest.aside
        self._observer.note(
            "agent.aside",
            standing.agent,
            before="used" if aside else "set aside",
            after="set aside" if aside else "used",
            reason=f"{standing.agent}'s {standing.answers}: {standing.words}",
            severity="warning" if aside else "info",
        )
