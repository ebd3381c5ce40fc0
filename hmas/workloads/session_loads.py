"""Workloads of sessions that begin as a Poisson process."""

from pathlib import Path

from hmas.loadgen.streams import stream
from hmas.workloads.drawn import TimedOptions, cut_to_count
from hmas.workloads.options import NotNegative, Positive
from hmas.workloads.processes import poisson_times
from hmas.workloads.session_files import of_source, read_text2sql, read_tool_sessions
from hmas.workloads.sessions import Session, SessionPlan


class Text2SqlOptions(TimedOptions, frozen=True, kw_only=True):
    """Options of text-to-SQL workflows: `rate`, `duration` and `count` refer to workflows, not to calls.

    Attributes:
        parallel: Whether runs of candidates, revisions and evaluations are parallel.
    """

    rate: Positive = 0.5
    parallel: bool = True


class ToolOptions(TimedOptions, frozen=True, kw_only=True):
    """Options of tool sessions: `rate`, `duration` and `count` refer to sessions, not to calls.

    Attributes:
        source: Only sessions whose source begins with this name; `all` for all; by default those whose pauses were measured.
        pause: Length of a pause that was not measured, seconds.
    """

    rate: Positive = 0.2
    source: str = ""
    pause: NotNegative = 1.0


def text2sql(options: Text2SqlOptions, path: Path) -> SessionPlan:
    """Text-to-SQL workflows."""
    return _plan("text2sql", read_text2sql(path, parallel=options.parallel), options)


def tools(options: ToolOptions, path: Path) -> SessionPlan:
    """Agents that call tools."""
    return _plan("tools", of_source(read_tool_sessions(path, pause_s=options.pause), options.source), options)


def _plan(name: str, sessions: list[Session], options: TimedOptions) -> SessionPlan:
    times = poisson_times(options.rate, options.horizon_s, stream(options.seed, "arrivals"))
    at_s, duration_s = cut_to_count(times, options)
    return SessionPlan(name, sessions, at_s, options, duration_s)
