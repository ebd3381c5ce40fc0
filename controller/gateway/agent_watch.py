"""Uses of the agents' answers what has proven right, scores all of them, and reports when one is set aside or comes back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controller.control.agent_scores import AgentScores
from controller.control.contest import Contest
from controller.core.messages import ControlAction, RequestCost, RequestFeatures
from controller.core.types import Estimates, OutcomeKind, Request
from controller.gateway.beliefs import Declared, bounded_forecast, with_cost, with_features
from controller.gateway.journal import Journal
from controller.scheduling.group import WINDOW
from controller.scheduling.outcomes import Dispatch, Ended
from controller.scheduling.scheduler import Scheduler
from controller.scheduling.walk import FENCE, GUARD

RELIEVED_EVERY_S = 10.0
"""A dispatch in spite of a hold is an event at most this often for each reason; the metric counts them all."""
CAUSES: Mapping[str, str] = {
    WINDOW: "the window is too small",
    GUARD: "the TPOT guard expected targets to be missed that are kept with room to spare",
    FENCE: "the forecast of the KV cache is too full: the engine reports less than half in use",
}


@dataclass(slots=True)
class Answers:
    """What the agents and the gateway's own history answered about one request.

    Attributes:
        shape: Of the request (`shape_of`).
        default: The history's estimate at its arrival.
        forecast: Perception's lengths, None before it answered.
        cost: Prediction's answer, None before it answered.
    """

    shape: str
    default: Estimates
    forecast: Estimates | None = None
    cost: RequestCost | None = None


class AgentWatch:
    """One for all agents and requests.

    `on_window` is called with an instance's name when its window is set aside or used again.
    """

    def __init__(self, journal: Journal, *, action_of: Callable[[str], ControlAction | None]) -> None:
        """`action_of`: what statera wants for an instance now, None where it is silent."""
        self.scores = AgentScores()
        self.on_window: Callable[[str], None] = lambda _: None
        self._journal = journal
        self._action_of = action_of
        self._reported_s: dict[str, float] = {}

    def with_features(self, now: Estimates, features: RequestFeatures, answers: Answers, request: Request, declared: Declared) -> Estimates:
        """Estimates after perception's answer. Its lengths order the queue; they bind the KV fence only where they have proven right."""
        answers.forecast = bounded_forecast(features, request.output_limit)
        if self.scores.lengths.aside:
            return with_features(now, features, declared, now.output_tokens, now.output_tokens_upper, proven=now.proven)
        forecast = answers.forecast
        if self.scores.proven(answers.shape):
            return with_features(now, features, declared, forecast.output_tokens, forecast.output_tokens_upper, proven=True)
        return with_features(now, features, declared, forecast.output_tokens, now.output_tokens_upper, proven=False)

    def with_cost(self, now: Estimates, cost: RequestCost, answers: Answers) -> Estimates:
        """Estimates after prediction's answer; unchanged while its times are worse than the history's."""
        answers.cost = cost
        return now if self.scores.costs.aside else with_cost(now, cost)

    def dispatched(self, dispatch: Dispatch, scheduler: Scheduler, now_s: float) -> None:
        """A request has been dispatched; the scheduler counts it as in flight."""
        name, action = dispatch.instance, self._action_of(dispatch.instance)
        if action is not None:
            relieved = dispatch.relieved == WINDOW or (dispatch.relieved == GUARD and action.guard < 1.0)
            held = scheduler.in_flight(name) > action.n_run and scheduler.is_half_empty(name, now_s)
            if self.scores.dispatched(name, held=held, relieved=relieved):
                self._report("statera's window", name, self.scores.window(name), "share of dispatches held back beside room")
                self.on_window(name)
        if dispatch.relieved and now_s - self._reported_s.get(dispatch.relieved, float("-inf")) >= RELIEVED_EVERY_S:
            self._reported_s[dispatch.relieved] = now_s
            cause = CAUSES.get(dispatch.relieved, "nothing else wanted the place")
            self._journal.note(
                "dispatch.relieved", name, after=dispatch.entry.request.id, reason=f"{dispatch.reason}: {cause}", severity="warning"
            )

    def ended(self, answers: Answers, ended: Ended, *, capped: bool) -> None:
        """A request has ended. `capped`: its answer was cut at a limit, so that its own length is not known."""
        if ended.kind is not OutcomeKind.COMPLETED or ended.output_tokens < 1:
            return
        if (
            answers.forecast is not None
            and not capped
            and self.scores.answered(answers.shape, answers.forecast, answers.default, ended.output_tokens)
        ):
            self._report("perception's lengths", "perception", self.scores.lengths, "mean pinball loss of the log length")
        cost = answers.cost
        if cost is None or ended.service_ttft_ms <= 0.0 or ended.tpot_ms <= 0.0 or ended.instance not in cost.ttft_ms:
            return
        said = (cost.ttft_ms[ended.instance], cost.tpot_ms.get(ended.instance, answers.default.tpot_ms))
        default = (answers.default.ttft_ms, answers.default.tpot_ms)
        if self.scores.timed(said, default, (ended.service_ttft_ms, ended.tpot_ms)):
            self._report("prediction's costs", "prediction", self.scores.costs, "mean absolute error of the log time")

    def _report(self, what: str, subject: str, contest: Contest, unit: str) -> None:
        state = "set aside" if contest.aside else "used"
        self._journal.note(
            "agent.aside",
            subject,
            before="used" if contest.aside else "set aside",
            after=state,
            reason=f"{what}: {unit} {contest.agent_loss:.3f}, {contest.default_loss:.3f} without it, over {contest.scored} requests",
            severity="warning" if contest.aside else "info",
        )
