"""Live scores of the agents' answers against the defaults that the gateway would use without them. Pure.

An agent's answer may order the queue from the first request on. It may hold a request back only once it has proven right: lengths by their
loss and by their live coverage on recent answers to requests of the same shape, length bounds by their loss, windows by not holding
requests back beside an engine with spare capacity.
"""

import math
from collections import OrderedDict, deque
from typing import NamedTuple

from hmas.controller.core.lengths import LEVELS, MEDIAN, P90
from hmas.controller.core.statistics.quantiles import pinball
from hmas.controller.core.types import Estimates

WINDOW = 50
"""Requests over which an agent and the default are compared."""
PROOF_LEAST = 20
"""Requests needed before an answer may count as proven."""
REST_MOST = 16 * WINDOW
"""Most requests for which an agent that was set aside again and again stays so: in an overload, losses can swing from window to window."""
REST_EACH = 0.1
"""By how many requests each answer that is used shortens that."""
LOSS_MOST = 10.0
"""A larger loss, or one that is no number, counts as this value."""
LENGTH_MARGIN, COST_MARGIN = 0.02, 0.05
"""How much worse than the default still passes: pinball loss of the log length, absolute error of the log time."""
HELD_SHARE = 0.05
"""Share of the newest dispatches that an agent's windows may have held back beside a half-empty instance."""
HELD_LEAST = 20
"""Dispatches needed before a window is judged."""
COVERAGE_LEAST = 0.8
"""Share of recent answers that the 90 % quantile must have covered for it to bind the KV fence."""
SHAPES_MOST = 64


LENGTHS, COSTS, BOUNDS, WINDOWS = "lengths", "costs", "length bounds", "windows"
UNITS = {
    LENGTHS: "mean error (pinball) of the log length",
    COSTS: "mean error of the log time",
    BOUNDS: "mean error (pinball) of the log upper length",
    WINDOWS: "share of dispatches held back although the engine had room",
}
"""The kinds of answers that are scored, and the meaning of their loss."""


class Contest:
    """Paired losses of an agent and of the default on the same requests.

    The agent is set aside once it is worse over a full window: by more than the margin and by more than one standard error of the paired
    difference. It keeps answering and is still scored, and it is used again once it is no worse than the default over a full window: the
    next one after the first time, later after each further time, and each answer that is used shortens that again.

    Args:
        margin: How much worse still passes, in the unit of the losses.
        full: Losses needed before a verdict; at most `WINDOW`.
        judging: Whether there is a verdict at all; else the agent is never set aside and counts as proven.

    Attributes:
        aside: Whether the agent is set aside.
    """

    def __init__(self, margin: float, *, full: int = WINDOW, judging: bool = True) -> None:
        self.aside = False
        self._judging = judging
        self._margin = margin
        self._full = full
        # Losses that it has to wait for now, and the next time that it is set aside.
        self._wait, self._rest = 0.0, 0.0
        self._agent: deque[float] = deque(maxlen=WINDOW)
        self._default: deque[float] = deque(maxlen=WINDOW)

    @property
    def scored(self) -> int:
        """Number of requests in the window."""
        return len(self._agent)

    @property
    def agent_loss(self) -> float:
        """Mean loss of the agent over the window; 0 if it is empty."""
        return sum(self._agent) / max(1, len(self._agent))

    @property
    def default_loss(self) -> float:
        """Mean loss of the default over the window; 0 if it is empty."""
        return sum(self._default) / max(1, len(self._default))

    @property
    def proven(self) -> bool:
        """Whether the answers have proven right: on enough requests, and no worse than the default so far."""
        if not self._judging:
            return True
        if self.aside or self.scored < PROOF_LEAST:
            return False
        return self.scored >= WINDOW or self.agent_loss <= self.default_loss + self._margin

    def add(self, agent_loss: float, default_loss: float) -> bool:
        """Records both losses on one request, each 0 or more. True if the verdict has changed."""
        self._agent.append(_bounded(agent_loss))
        self._default.append(_bounded(default_loss))
        if not self._judging or len(self._agent) < self._full:
            return False
        worse = self.agent_loss - self.default_loss
        if self.aside:
            self._wait -= 1
            self.aside = worse > 0.0 or self._wait > 0
            return not self.aside
        self._rest = max(0.0, self._rest - REST_EACH)
        if worse > max(self._margin, self._standard_error(worse)):
            self._set_aside()
        return self.aside

    def fail(self) -> bool:
        """Sets the agent aside at once, on evidence that needs no average. True if it was not set aside before."""
        before = self.aside
        self.add(LOSS_MOST, 0.0)
        if self._judging and not self.aside:
            self._set_aside()
        return self.aside and not before

    def _set_aside(self) -> None:
        self.aside, self._wait = True, self._rest
        self._rest = min(REST_MOST, max(WINDOW, 2.0 * self._rest))

    def _standard_error(self, mean: float) -> float:
        count = len(self._agent)
        squares = sum((agent - default - mean) ** 2 for agent, default in zip(self._agent, self._default, strict=True))
        return math.sqrt(squares) / count


def _bounded(loss: float) -> float:
    return min(LOSS_MOST, max(0.0, loss)) if math.isfinite(loss) else LOSS_MOST


class Standing(NamedTuple):
    """The score of one kind of an agent's answers, of `UNITS`."""

    agent: str
    answers: str
    contest: Contest

    @property
    def used(self) -> bool:
        """Whether these answers are used: length bounds once they have proven right, all others until they are set aside."""
        return self.contest.proven if self.answers == BOUNDS else not self.contest.aside

    @property
    def words(self) -> str:
        """A description of the score: the mean loss of the agent's answers next to that of the default, lower is better."""
        contest = self.contest
        losses = f"{contest.agent_loss:.3f} against {contest.default_loss:.3f} without it"
        return f"{losses}, {UNITS[self.answers]} of the newest {contest.scored} requests (lower is better)"


class AgentScores:
    """Scores by agent: `lengths` (perception), `costs` (prediction), `bounds` (statera), and `windows` of statera and meta.

    Attributes:
        bound_level: Share of the outputs that length bounds are to cover (1 - epsilon of Eq. 4).
    """

    def __init__(self, *, judging: bool = True, bound_level: float = LEVELS[P90]) -> None:
        self._judging = judging
        self.bound_level = bound_level
        self.lengths = Contest(LENGTH_MARGIN, judging=judging)
        self.costs = Contest(COST_MARGIN, judging=judging)
        self.bounds = Contest(LENGTH_MARGIN, judging=judging)
        self.windows = {agent: Contest(HELD_SHARE, full=HELD_LEAST, judging=judging) for agent in ("statera", "meta")}
        self._covered: OrderedDict[str, deque[bool]] = OrderedDict()

    def proven(self, shape: str) -> bool:
        """Whether forecast lengths of requests of this shape may hold a request back."""
        covered = self._covered.get(shape)
        return not self._judging or (self.lengths.proven and covered is not None and _holds(covered))

    def inconsistent(self, shape: str) -> bool:
        """Whether the answers to requests of this shape have lately outgrown their forecasts (H-MAS C.2); unknown counts as no."""
        covered = self._covered.get(shape)
        return covered is not None and len(covered) >= PROOF_LEAST and not _holds(covered)

    def standings(self) -> list[Standing]:
        """The scores of all agents, by kind of answers."""
        requests = [Standing("perception", LENGTHS, self.lengths), Standing("prediction", COSTS, self.costs)]
        windows = [Standing(agent, WINDOWS, contest) for agent, contest in self.windows.items()]
        return [*requests, Standing("statera", BOUNDS, self.bounds), *windows]

    def dispatched(self, agent: str, *, held: bool, relieved: bool) -> bool:
        """Scores an agent's window after a dispatch. True if this changed whether the agent's windows are set aside.

        One window that held a request back for long beside spare capacity sets all of the agent's windows aside: without only that one,
        requests would go to this instance and load it instead of the others, and the other windows, just as wrong, would no longer be
        noticed.

        Args:
            agent: The agent.
            held: Whether the agent's window would have held the request back while the instance was less than half full.
            relieved: Whether it did so for so long that the request was dispatched in spite of it.
        """
        contest = self.windows[agent]
        return contest.fail() if relieved else contest.add(float(held), 0.0)

    def answered(self, shape: str, forecast: Estimates, default: Estimates, output_tokens: int) -> bool:
        """Scores perception's length forecast, and the `default` by history, after an output has ended by itself.

        Both are as before the output began; `shape` is of `shape_of`. True if this changed whether forecast lengths are set aside.
        """
        covered = self._covered.get(shape)
        if covered is None:
            covered = self._covered[shape] = deque(maxlen=WINDOW)
            if len(self._covered) > SHAPES_MOST:
                self._covered.popitem(last=False)
        covered.append(output_tokens <= forecast.output_tokens_upper)
        return self.lengths.add(_length_loss(forecast, output_tokens), _length_loss(default, output_tokens))

    def bounded(self, upper: float, default: float, output_tokens: int) -> bool:
        """Scores the upper length with a bound, and the `default` without, after an output has ended by itself.

        True if this changed whether length bounds may bind.
        """
        log_true, before = math.log(output_tokens), self.bounds.proven
        level = self.bound_level
        self.bounds.add(pinball(log_true, _log(upper), level), pinball(log_true, _log(default), level))
        return self.bounds.proven is not before

    def timed(self, forecast: tuple[float, float], default: tuple[float, float], measured: tuple[float, float]) -> bool:
        """Scores a forecast of TTFT from dispatch and of TPOT after both were measured, all in milliseconds; `default` is by history.

        True if this changed whether costs are set aside.
        """
        return self.costs.add(_time_loss(forecast, measured), _time_loss(default, measured))


def shape_of(*, turns: int, has_tools: bool) -> str:
    """The group of a request for coverage: by its number of messages, and by whether it has tools."""
    length = "completion" if turns <= 0 else "one message" if turns == 1 else "2 to 3 messages" if turns <= 3 else "4 messages or more"
    return f"{length}, tools" if has_tools else length


def _holds(covered: deque[bool]) -> bool:
    return len(covered) >= PROOF_LEAST and sum(covered) >= COVERAGE_LEAST * len(covered)


def _length_loss(said: Estimates, output_tokens: int) -> float:
    log_true = math.log(max(1, output_tokens))
    return pinball(log_true, _log(said.output_tokens), LEVELS[MEDIAN]) + pinball(log_true, _log(said.output_tokens_upper), LEVELS[P90])


def _time_loss(said: tuple[float, float], measured: tuple[float, float]) -> float:
    return sum(abs(_log(one) - _log(true)) for one, true in zip(said, measured, strict=True)) / len(measured)


def _log(value: float) -> float:
    return math.log(max(1.0, value)) if math.isfinite(value) else math.inf
