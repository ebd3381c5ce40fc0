"""Recorded sessions: text-to-SQL workflows (HexGen-Flow's traces) and agents with tools, and workloads that draw from them."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.loadgen.arrivals import poisson_times
from hmas.loadgen.streams import stream
from hmas.loadgen.traces import MAX_TOKENS, records
from hmas.workloads.drawn import TimedOptions, cut_to_count
from hmas.workloads.options import NotNegative, Positive
from hmas.workloads.sessions import Call, Session, SessionPlan

STEP_TASKS = {
    "Information Retriever": TaskType.EXTRACTION,
    "extract_keywords": TaskType.EXTRACTION,
    "generate_candidate": TaskType.CODE_GENERATION,
    "revise": TaskType.CODE_GENERATION,
    "generate_unit_test": TaskType.CODE_GENERATION,
    "unit_tester": TaskType.QA,
    "evaluate": TaskType.QA,
}
"""Task types of text-to-SQL steps, by the beginning of their names."""
SIDE_BY_SIDE = ("generate_candidate", "revise", "evaluate")
"""Steps whose consecutive runs count as parallel groups with a barrier after each: an interpretation of the flat list without edges."""
SOURCE_TASKS = {
    "agentcgroup": TaskType.CODE_GENERATION,
    "lmcache-agent-trace/miniswe": TaskType.CODE_GENERATION,
    "lmcache-agent-trace/magagent": TaskType.RESEARCH_AND_COMMUNICATION,
    "lmcache-agent-trace/taubench": TaskType.DIALOGUE,
    "tau-bench": TaskType.DIALOGUE,
    "SWE-agent": TaskType.CODE_GENERATION,
    "api-bank": TaskType.DIALOGUE,
}
"""Task types of tool sessions, by the beginning of their sources' names."""


Length = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class SqlCall(msgspec.Struct):
    """A call of a text-to-SQL workflow in the file."""

    step: str
    input_tokens: Length
    output_tokens: Length


class SqlWorkflow(msgspec.Struct):
    """A text-to-SQL workflow in the file."""

    workflow_id: str
    calls: Annotated[list[SqlCall], Meta(min_length=1)]
    trace: str = "text2sql"


class Tool(msgspec.Struct):
    """A tool's run: its duration if measured."""

    dur_s: Annotated[float, Meta(ge=0, lt=1e7)] | None = None


class ToolCall(msgspec.Struct):
    """A call of a tool session in the file; which times it has depends on the source."""

    input_tokens: Tokens
    output_tokens: Tokens
    ready_s: float | None = None
    end_s: float | None = None
    cached_tokens: int | None = None
    shared_prefix_frac: float | None = None
    tools: list[Tool] = []


class ToolSession(msgspec.Struct):
    """A tool session in the file."""

    session_id: str
    source: str
    calls: list[ToolCall]


def read_text2sql(path: Path, *, parallel: bool) -> list[Session]:
    """Reads text-to-SQL workflows.

    Args:
        path: JSON lines, also gzipped.
        parallel: Whether runs of candidates, revisions and evaluations are parallel; else every call waits for the previous one.

    Raises:
        TraceError: The file cannot be used, or a row is bad (named with its field).
    """
    return _read(path, SqlWorkflow, lambda row: _workflow(row, parallel=parallel))


def read_tool_sessions(path: Path, *, pause_s: float) -> list[Session]:
    """Reads tool sessions from JSON lines, also gzipped; pauses that the source did not measure are `pause_s` long.

    Raises:
        TraceError: The file cannot be used, or a row is bad (named with its field).
    """
    return _read(path, ToolSession, lambda row: _tool_session(row, pause_s))


def _read(path: Path, kind: type[Any], make: Callable[[Any], Session | None]) -> list[Session]:
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    found = []
    for line, record in records(path):
        try:
            session = make(msgspec.convert(record, kind))
        except msgspec.ValidationError as error:
            raise TraceError(f"{path}, row {line}: {error}") from error
        if session is not None:
            found.append(session)
    if not found:
        raise TraceError(f"{path}: holds no sessions")
    return found


def _workflow(row: SqlWorkflow, *, parallel: bool) -> Session:
    calls: list[Call] = []
    for place, call in enumerate(row.calls):
        together = parallel and place > 0 and row.calls[place - 1].step == call.step and call.step.startswith(SIDE_BY_SIDE)
        stage = calls[-1].stage + (0 if together else 1) if calls else 0
        calls.append(
            Call(
                stage=stage,
                prompt_tokens=call.input_tokens,
                output_tokens=call.output_tokens,
                task=_by_name(STEP_TASKS, call.step),
                step=call.step,
            )
        )
    return Session(id=row.workflow_id, source=f"text2sql/{row.trace}", calls=tuple(calls))


def _tool_session(row: ToolSession, pause_s: float) -> Session | None:
    task = _by_name(SOURCE_TASKS, row.source)
    # Some logs have calls without text, in which there is nothing to serve.
    logged = [call for call in row.calls if call.input_tokens > 0]
    if not logged:
        return None
    pauses = [_pause_s(call, following) for call, following in pairwise([*logged, None]) if call is not None]
    prefixes = [_prefix_tokens(call, before) for before, call in pairwise([None, *logged]) if call is not None]
    calls = tuple(
        Call(
            stage=place,
            prompt_tokens=call.input_tokens,
            output_tokens=max(1, call.output_tokens),
            prefix_tokens=min(prefix, call.input_tokens),
            pause_s=pause_s if pause is None else pause,
            task=task,
            step=row.source,
        )
        for place, (call, pause, prefix) in enumerate(zip(logged, pauses, prefixes, strict=True))
    )
    return Session(id=row.session_id, source=row.source, calls=calls, measured=None not in pauses)


def _pause_s(call: ToolCall, following: ToolCall | None) -> float | None:
    """Time until the next call's context was ready; else the longest tool, because a message's tools overlap; None if unknown."""
    if following is None:
        return 0.0
    if call.end_s is not None and following.ready_s is not None:
        return max(0.0, following.ready_s - call.end_s)
    known = [tool.dur_s for tool in call.tools if tool.dur_s is not None]
    return max(known) if call.tools and len(known) == len(call.tools) else None


def _prefix_tokens(call: ToolCall, before: ToolCall | None) -> int:
    """The cached or shared tokens in the log; else, if the context only grew, the whole previous prompt."""
    if call.cached_tokens is not None:
        return max(0, call.cached_tokens)
    if call.shared_prefix_frac is not None and before is not None:
        return int(min(1.0, max(0.0, call.shared_prefix_frac)) * call.input_tokens)
    return before.input_tokens if before is not None and call.input_tokens >= before.input_tokens else 0


def _by_name(tasks: dict[str, TaskType], name: str) -> TaskType:
    return next((task for begin, task in tasks.items() if name.startswith(begin)), TaskType.UNKNOWN)


def of_source(sessions: Iterable[Session], source: str) -> list[Session]:
    """Sessions whose source begins with this name; all for `all`; those with measured pauses for an empty name.

    Raises:
        TraceError: There is none.
    """
    pool = list(sessions)
    chosen = [s for s in pool if s.measured] if not source else [s for s in pool if source == "all" or s.source.startswith(source)]
    if not chosen:
        allowed = sorted({s.source for s in pool})
        raise TraceError(f"source is {source!r}; allowed: all, how one of these begins, or none for measured pauses: {', '.join(allowed)}")
    return chosen


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
