"""One admitted request: the handle by which the part that decides reaches the part that serves.

The seam between the two parts runs here. `RequestManager` decides: it reads what a request asks for, and calls `wake`, `drop` and `abort`.
`CompletionHandler` serves: it owns the body, the task and the future, and calls the manager's public methods.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hmas.controller.control.estimates import Declared
from hmas.controller.core.request_body import Call
from hmas.controller.core.types import OutcomeKind, Request
from hmas.controller.gateway.control_loop.agent_watch import Answers
from hmas.controller.gateway.errors import ApiError
from hmas.controller.scheduling.policy_base.queue_entry import QueueEntry
from hmas.controller.scheduling.results import Dispatch
from hmas.engines.errors import EngineSilent

Stage = Literal["waiting", "sent", "head", "answering"]


class Ending(ApiError):
    """An early end of an admitted request: the error that the client gets, and how it is counted."""

    def __init__(self, kind: OutcomeKind, status: int, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(status, code, message, retry_after_s=retry_after_s)
        self.kind = kind


@dataclass(slots=True)
class ActiveRequest:
    """One admitted request until its ending is recorded.

    Attributes:
        client_request_id: The id that the client sees: its own, or the internal one.
        declared: The targets that the client declared, raised to the least that its tenant may have.
        body: The body that is sent to the engine.
        trace_headers: Trace headers for the engine.
        task: The task that serves the client.
        dispatch_future: Resolves to the dispatch, or raises the `Ending` that removes the request from the queue.
        aborted: Set before the gateway itself cancels the task; a cancellation without it means that the client left.
        entry, queued_s: Its place in the queue, and when the scheduler admitted it.
        instance, dispatched_s: The instance that it was sent to, and when; empty and 0 while it waits.
        failed_s: Seconds that it spent at instances which failed it.
        stage: How far it has come at its instance: not sent yet, sent, answered with a head, or passed on to the client.
        recalled: Set before the gateway itself takes it back from its instance: how that instance failed.
        answers: The answers of the agents and of the gateway's history about it; None before it is admitted.
        raised: Response headers that tell which declared targets were raised, None if none was.
        served_instead: The model that serves it in place of the one that it names; empty where that one does.
        paid_tokens: The output tokens that its tenant was charged, None if it has not completed.
        only_on: The only instance that may serve it, because it keeps the response which the request continues; empty for any.
    """

    request: Request
    call: Call
    client_request_id: str
    declared: Declared
    body: bytes
    trace_headers: dict[str, str]
    task: asyncio.Task[object]
    dispatch_future: asyncio.Future[Dispatch]
    aborted: Ending | None = None
    entry: QueueEntry | None = None
    queued_s: float = 0.0
    instance: str = ""
    dispatched_s: float = 0.0
    failed_s: float = 0.0
    stage: Stage = "waiting"
    recalled: EngineSilent | None = None
    answers: Answers | None = None
    raised: Mapping[str, str] | None = None
    paid_tokens: int | None = None
    only_on: str = ""
    served_instead: str = ""

    def wake(self, dispatch: Dispatch) -> None:
        """Lets the task send the request. A task that was cancelled at this moment records its own ending when it wakes."""
        if not self.dispatch_future.done():
            self.dispatch_future.set_result(dispatch)

    def drop(self, ending: Ending) -> None:
        """Lets the task of a waiting request answer the client with an error."""
        if not self.dispatch_future.done():
            self.dispatch_future.set_exception(ending)

    def abort(self, ending: Ending) -> None:
        """Cancels the task, which stops the engine and answers the client with an error. The first call counts."""
        if self.aborted is None:
            self.aborted = ending
            self.task.cancel()

    def recall(self, failure: EngineSilent) -> None:
        """Takes it back from its instance, as if that had failed. Without effect before it is sent, and once its client has got bytes."""
        if self.aborted is None and self.recalled is None and self.stage in ("sent", "head"):
            self.recalled = failure
            self.task.cancel()

    def wait_again(self, now_s: float) -> None:
        """Forgets the dispatch, whose instance has failed: the task waits for another one."""
        self.failed_s += now_s - self.dispatched_s
        self.dispatch_future = asyncio.get_running_loop().create_future()
        self.instance = ""
        self.dispatched_s = 0.0
        self.stage = "waiting"
        self.recalled = None
