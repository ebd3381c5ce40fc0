"""The adapter of any OpenAI-compatible server: it passes requests on and assumes nothing else about the server."""

import math
import re
from collections.abc import Iterator, Mapping

import msgspec
import orjson

from hmas.engines.base import EngineCapabilities, EngineSnapshot, KnobReport, Knobs
from hmas.engines.client import EngineClient
from hmas.engines.errors import EngineError, EngineProtocolError, EngineUnavailable
from hmas.engines.http.exchange import Exchange

REQUEST_ID = "x-request-id"
_SAMPLE = re.compile(r"([\w:]+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
WINDOW_ONLY = "the gateway's window holds n_run, no other knob is live"
COMPLETION_CAP = 16
"""OpenAI's own default of `max_tokens` under `/v1/completions`, which vLLM and SGLang have taken over."""


class OpenAIEngine:
    """The generic adapter, and the base class of the specific ones. See `hmas.engines.base.Engine`.

    A request can only be aborted by closing its response before the end: `abort` returns False.

    Args:
        client: The connections; they may be shared with another adapter of the same engine.
        control: Connections that carry the token of the engine's control plugin; None to use `client`.
    """

    kind = "openai"

    def __init__(self, client: EngineClient, control: EngineClient | None = None) -> None:
        self.name = client.name
        self.capabilities = EngineCapabilities(kind=self.kind, control=WINDOW_ONLY)
        self._tokens = 0
        self._client = client
        self._control = control or client

    async def send(self, path: str, body: bytes, headers: Mapping[str, str], *, request_id: str, priority: int = 0) -> Exchange:
        """Posts `body` unchanged; writes `priority` into it only for an engine that orders its queue by priority."""
        if priority and self.capabilities.priority:
            body = with_priority(body, priority)
        if not any(name.lower() == REQUEST_ID for name in headers):
            headers = {**headers, REQUEST_ID: request_id}
        return await self._client.send(path, body, headers)

    async def call(self, method: str, path: str) -> tuple[int, bytes]:
        """Returns status and body of a request without a document.

        Raises:
            EngineUnavailable: No answer came.
        """
        return await self._client.call(method, path)

    async def abort(self, request_id: str) -> bool:  # noqa: ARG002 - the protocol's parameter; other adapters use it
        """Returns False: such a server cannot abort by request id."""
        return False

    async def snapshot(self, now_s: float) -> EngineSnapshot:
        """Reads the engine's state; never raises."""
        try:
            snapshot = await self._read(now_s)
        except EngineError as error:
            return EngineSnapshot(engine=self.name, taken_s=now_s, healthy=False, detail=str(error))
        tokens = snapshot.prompt_tokens_total + snapshot.generation_tokens_total
        if tokens != self._tokens:
            self._tokens = tokens
            self._client.pool.computes()
        return snapshot

    async def apply_knobs(self, knobs: Knobs) -> KnobReport:
        """Refuses every knob that is set."""
        reason = f"an engine of kind {self.kind} has no live knobs; set them at its start"
        return KnobReport(refused=dict.fromkeys(msgspec.to_builtins(knobs), reason))

    async def close(self) -> None:
        """Closes every connection."""
        await self._client.close()
        if self._control is not self._client:
            await self._control.close()

    async def _read(self, now_s: float) -> EngineSnapshot:
        """Reads the state of the engine.

        Raises:
            EngineError: The engine does not answer, or not correctly.
        """
        await self._document("/v1/models")
        return EngineSnapshot(engine=self.name, taken_s=now_s, healthy=True)

    async def _document(self, path: str) -> dict[str, object]:
        """Returns the JSON object of a GET.

        Raises:
            EngineUnavailable: No answer came, or its status is not 200.
            EngineProtocolError: The answer is not a JSON object.
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
    """Writes the priority into the body; one that is not a JSON object, or is nested too deep to be written, stays unchanged."""
    try:
        document = orjson.loads(body)
        return orjson.dumps(document | {"priority": priority}) if isinstance(document, dict) else body
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return body


def read_samples(metrics: bytes, names: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of every sample of these names in metrics in Prometheus text format; other lines are ignored.

    A value that is no finite number says nothing and is left out.
    """
    for line in metrics.decode("utf-8", "replace").splitlines():
        if not line.startswith(names):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None or match[1] not in names:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            yield match[1], dict(_LABEL.findall(match[2] or "")), value
