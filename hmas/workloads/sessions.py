"""Sessions: chains of calls in which the next call comes after one has ended and its tool has answered."""

from collections.abc import Sequence

import msgspec
import numpy as np

from hmas.controller.core.types import TaskType
from hmas.loadgen.requests import Floats, Ints
from hmas.loadgen.streams import stream
from hmas.loadgen.workload import draw_importances
from hmas.workloads.options import Options

LEAST_CAP = 256


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a session.

    Attributes:
        stage: Calls of one stage run in parallel; the next stage begins when all of them have ended and their pauses are over.
        prompt_tokens, output_tokens: True lengths, 1 or more.
        prefix_tokens: Tokens at the beginning of the prompt that it shares with the session's previous call; for the first call, with all
            sessions of its source.
        pause_s: Time that its tools take after it has ended.
        task: Its task type.
        step: The name of its step in the source.
    """

    stage: int
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    pause_s: float = 0.0
    task: TaskType = TaskType.UNKNOWN
    step: str = ""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded session: calls in order, stages numbered from 0 without gaps, and whether its pauses were measured or assumed."""

    id: str
    source: str
    calls: tuple[Call, ...]
    measured: bool = True


class SessionPlan:
    """Sessions that begin at given times: a closed-loop workload, in which later calls depend on earlier ones.

    Attributes:
        at_s: When each session begins, ascending.
        which: Index of the recorded session of each.
        importance: 0.5 to 1, one draw for all calls of a session.
        duration_s: Length of the time in which sessions begin.
    """

    def __init__(self, name: str, sessions: Sequence[Session], at_s: Floats, options: Options, duration_s: float) -> None:
        """Draws, with replacement, the recorded session for each beginning, and its importance."""
        self.name = name
        self.sessions = tuple(sessions)
        self.at_s = at_s
        self.duration_s = duration_s
        self.options = options
        self.which: Ints = stream(options.seed, "sessions").integers(0, len(self.sessions), len(at_s))
        self.importance = draw_importances(options.seed, len(at_s))

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def calls(self) -> int:
        """Number of calls of all sessions together, if every session completes."""
        sizes = np.array([len(session.calls) for session in self.sessions])
        return int(sizes[self.which].sum())

    def session(self, number: int) -> Session:
        """The recorded session of a beginning, counted from 0."""
        return self.sessions[int(self.which[number])]

    def lengths(self, call: Call) -> tuple[int, int, int]:
        """Prompt and output of a call and the cap that it declares, tokens, cut to the options' context."""
        prompt, cap = call.prompt_tokens, LEAST_CAP
        while cap < call.output_tokens:
            cap *= 2
        if context := self.options.context:
            cap = min(cap, max(1, context // 4))
            prompt = max(1, min(prompt, int(context * 0.95) - cap))
        return prompt, min(cap, call.output_tokens), cap
