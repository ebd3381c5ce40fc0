"""Any OpenAI-compatible server as an engine: passes requests on, and knows nothing of its inside."""

from collections.abc import Mapping, Sequence

import msgspec
import orjson

from hmas.engines.base import EngineCapabilities, EngineSnapshot, KnobReport, Knobs
from hmas.engines.client import EngineClient, HttpResponse
from hmas.engines.errors import EngineError, EngineProtocolError, EngineUnavailable

REQUEST_ID = "x-request-id"
WINDOW_ONLY = "the gateway's window holds n_run, no other knob is live"


class OpenAIEngine:
    """The generic adapter, and the base of those that know more. See `hmas.engines.base.Engine`.

    Closing a response before its end is all the abort there is here: `abort` reaches nothing and says so.

    Args:
        client: The connections; they may be shared with another adapter of the same engine.
        control: Connections that carry the token of the engine's control plugin; None where it has none, then `client` does.
    """

    kind = "openai"

    def __init__(self, client: EngineClient, control: EngineClient | None = None) -> None:
        self.name = client.name
        self.url = client.url
        self.capabilities = EngineCapabilities(kind=self.kind, control=WINDOW_ONLY)
        self._client = client
        self._control = control or client

    async def send(self, path: str, body: bytes, headers: Mapping[str, str], *, request_id: str, priority: int = 0) -> HttpResponse:
        """Posts `body` as it is; `priority` is written into it only for an engine that orders its queue by it."""
        if priority and self.capabilities.priority:
            body = with_priority(body, priority)
        if not any(name.lower() == REQUEST_ID for name in headers):
            headers = {**headers, REQUEST_ID: request_id}
        return await self._client.send(path, body, headers)

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET on the engine.

        Raises:
            EngineUnavailable: No answer came.
        """
        return await self._client.get(path)

    async def abort(self, request_id: str) -> bool:  # noqa: ARG002 - the protocol's parameter; other adapters use it
        """False: such a server takes no such order."""
        return False

    async def snapshot(self, now_s: float) -> EngineSnapshot:
        """Reads the engine's state; never raises."""
        try:
            return await self._read(now_s)
        except EngineError as error:
            return EngineSnapshot(engine=self.name, taken_s=now_s, healthy=False, detail=str(error))

    async def apply_knobs(self, knobs: Knobs) -> KnobReport:
        """Refuses every knob that is set."""
        reason = f"an engine of kind {self.kind} has no live knobs; set them at its start"
        return KnobReport(refused=dict.fromkeys(msgspec.to_builtins(knobs), reason))

    async def reprioritize(self, priorities: Mapping[str, int]) -> frozenset[str]:  # noqa: ARG002 - other adapters use it
        """None: such a server lets nobody reach into its queue."""
        return frozenset()

    async def evict(self, request_ids: Sequence[str]) -> frozenset[str]:  # noqa: ARG002 - other adapters use it
        """None: such a server takes no such order."""
        return frozenset()

    async def close(self) -> None:
        """Lets every connection go."""
        await self._client.close()
        if self._control is not self._client:
            await self._control.close()

    async def _read(self, now_s: float) -> EngineSnapshot:
        """The state of an engine that answers.

        Raises:
            EngineError: It does not answer, or not as it should.
        """
        await self._document("/v1/models")
        return EngineSnapshot(engine=self.name, taken_s=now_s, healthy=True)

    async def _document(self, path: str) -> dict[str, object]:
        """A JSON object from a GET.

        Raises:
            EngineUnavailable: No answer, or not with status 200.
            EngineProtocolError: The answer is something else.
        """
        status, data = await self._client.get(path)
        if status != 200:
            raise EngineUnavailable(f"engine {self.name} answers {path} with status {status}")
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise EngineProtocolError(f"engine {self.name} answers {path} with no JSON: {data[:80]!r}") from error
        if not isinstance(document, dict):
            raise EngineProtocolError(f"engine {self.name} answers {path} with no JSON object: {data[:80]!r}")
        return document


def with_priority(body: bytes, priority: int) -> bytes:
    """The body with the priority written into it; one that is no JSON object stays as it is, for the engine to refuse."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    return orjson.dumps(document | {"priority": priority}) if isinstance(document, dict) else body
