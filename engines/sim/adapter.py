"""The adapter of the embedded engine over HTTP: full load signals, live knobs and aborts."""

import msgspec
import orjson

from hmas.engines.base import EngineCapabilities, EngineSnapshot, KnobReport, Knobs
from hmas.engines.errors import EngineError, EngineProtocolError, EngineUnavailable
from hmas.engines.openai import OpenAIEngine


class SimEngine(OpenAIEngine):
    """Adapter of `hmas.engines.sim.server`."""

    kind = "sim"

    async def abort(self, request_id: str) -> bool:
        """Ends a request by the id under which it was sent; returns True if it was in flight. Never raises."""
        try:
            _status, data = await self._client.post("/abort_requests", orjson.dumps({"request_ids": [request_id]}))
            return bool(orjson.loads(data)["aborted"])
        except (EngineError, ValueError, KeyError, TypeError):
            return False

    async def apply_knobs(self, knobs: Knobs) -> KnobReport:
        """Sets live knobs; if the engine does not answer, all are reported as refused."""
        try:
            status, data = await self._client.post("/sim/knobs", msgspec.json.encode(knobs))
            if status != 200:
                raise EngineUnavailable(f"engine {self.name} answers /sim/knobs with status {status}")
            return msgspec.json.decode(data, type=KnobReport)
        except (EngineError, msgspec.DecodeError) as error:
            return KnobReport(refused=dict.fromkeys(msgspec.to_builtins(knobs), str(error)))

    async def _read(self, now_s: float) -> EngineSnapshot:
        if not self.capabilities.load_signals:
            await self._probe()
        status, data = await self._client.get("/sim/state")
        if status != 200:
            raise EngineUnavailable(f"engine {self.name} answers /sim/state with status {status}")
        try:
            state = msgspec.json.decode(data, type=EngineSnapshot)
        except msgspec.DecodeError as error:
            raise EngineProtocolError(f"engine {self.name} answers /sim/state with no snapshot: {data[:80]!r}") from error
        return msgspec.structs.replace(state, engine=self.name, taken_s=now_s)

    async def _probe(self) -> None:
        document = await self._document("/version")
        self.capabilities = EngineCapabilities(
            kind=self.kind,
            version=str(document.get("version", "")),
            live_knobs=("n_run", "token_budget"),
            abort=True,
            priority=document.get("scheduling_policy") == "priority",
            load_signals=True,
            token_counters=True,
            control="live: n_run, token_budget",
        )
