"""When each agent last answered, how old that answer may be, and which agent the others wait for. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from hmas.controller.control.resolve import META, STATERA
from hmas.controller.core.messages import NOTICE_FRESH_S, VIEW_FRESH_S

ANSWER_S = 5.0
"""How long perception and prediction may take for an answer: they answer within milliseconds, but only if requests come."""
UNASKED_S = 2.0 * NOTICE_FRESH_S
"""After so long without a new request, agents that run have answered the earlier ones or dropped them: perception, and then prediction."""
START_S = 15.0
"""How long after its start a gateway may have heard nothing of an agent."""
ASKED = ("perception", "prediction")
"""The agents that answer requests; the others send messages by themselves."""
WAITS_FOR = {"prediction": "perception", META: "qos", STATERA: "qos"}
"""The agents whose input another one makes."""

State = Literal["ok", "starting", "late", "starved", "left out"]


@dataclass(frozen=True, slots=True)
class AgentState:
    """One agent.

    Attributes:
        state: `ok`; `starting`: no message yet, soon after the gateway's start; `late`: its last message is too old; `starved`: the agent
            that makes its input, `waits_for`, is late or left out; `left out`: it does not run, by configuration.
        age_s: Seconds since its last message; None if there was none.
        limit_s: How old that may be; for `ASKED`, how long a request may be unanswered.
        unanswered_s: For `ASKED`, how long the oldest request without an answer has waited; None if every request has one.
    """

    name: str
    state: State
    age_s: float | None
    limit_s: float
    unanswered_s: float | None = None
    waits_for: str = ""


class AgentLiveness:
    """The times of the agents' last messages.

    Attributes:
        received_s: Time of the last message from each agent, by agent.
    """

    def __init__(self) -> None:
        self.received_s: dict[str, float] = {}
        self._asked_s: dict[str, float] = {}
        self._newest_s = 0.0

    def asked(self, now_s: float) -> None:
        """Records that a request was published to the agents that answer requests."""
        self._newest_s = now_s
        if len(self._asked_s) < len(ASKED):
            for name in ASKED:
                self._asked_s.setdefault(name, now_s)

    def received(self, name: str, now_s: float) -> None:
        """Records a message of an agent. For the agents that answer requests it counts as an answer to all requests so far."""
        self.received_s[name] = now_s
        self._asked_s.pop(name, None)

    def reported(self, name: str, now_s: float) -> None:
        """Records that an agent runs, by a report that it sends unasked. Requests that it has dropped by now wait for no answer of it."""
        if now_s - self._newest_s > UNASKED_S:
            self._asked_s.pop(name, None)

    def states(
        self, names: Collection[str], running: Collection[str], now_s: float, *, started_s: float, stale_after_s: float
    ) -> list[AgentState]:
        """Returns the state of each named agent. `started_s`: when the gateway started; `stale_after_s`: as in the configuration."""
        limits = {**dict.fromkeys(ASKED, ANSWER_S), "qos": VIEW_FRESH_S}
        found: list[AgentState] = []
        for name in names:
            limit_s = limits.get(name, stale_after_s)
            received_s, asked_s = self.received_s.get(name), self._asked_s.get(name)
            age_s = None if received_s is None else max(0.0, now_s - received_s)
            unanswered_s = None if asked_s is None else max(0.0, now_s - asked_s)
            state: State
            if name not in running:
                state = "left out"
            elif name in ASKED:
                state = "late" if unanswered_s is not None and unanswered_s > limit_s else "ok"
            elif age_s is None:
                state = "starting" if now_s - started_s <= START_S else "late"
            else:
                state = "late" if age_s > limit_s else "ok"
            found.append(AgentState(name, state, age_s, limit_s, unanswered_s))
        missing = {one.name for one in found if one.state in ("late", "left out")}
        return [_starved(one) if WAITS_FOR.get(one.name) in missing and one.state != "left out" else one for one in found]


def _starved(one: AgentState) -> AgentState:
    return AgentState(one.name, "starved", one.age_s, one.limit_s, one.unanswered_s, WAITS_FOR[one.name])
