"""SGLang over HTTP: load signals, aborts by request id, the concurrency cap that stock SGLang can change, and the control plugin.

SGLang serves the HIGHER priority first unless it was started with `--schedule-low-priority-values-first`; the sign is converted here.
"""

import json
import re
from collections.abc import Mapping, Sequence

import msgspec
import orjson

from hmas.engines.base import EngineCapabilities, EngineSnapshot, KnobReport, Knobs
from hmas.engines.client import EngineClient
from hmas.engines.control import PluginEngine
from hmas.engines.errors import EngineError
from hmas.engines.http.exchange import Exchange
from hmas.engines.openai import COMPLETION_CAP
from hmas.engines.sglang.answers import Counters, Load, Loads, ServerInfo, parse_answer, parse_counters

CAP = "pp_max_micro_batch_size"
"""SGLang's name of its concurrency cap; without pipeline parallelism the only micro-batch is the running batch."""

NOT_STOCK: Mapping[str, str] = {
    "token_budget": "stock SGLang sets its chunked prefill size at its start only; hmas-engine-plugin makes it live",
}
MAX_PRIORITY = 2**31 - 1
SETTINGS_EVERY_S = 10.0
COUNTERS_EVERY_S = 2.0
"""How often the metrics are read: each reading takes tens of milliseconds of the process that also streams SGLang's answers."""

_ID = re.compile(r"[0-9a-f]{32}")
_START = re.compile(rb"\s*\{\s*(?=\")")
_EMBEDDINGS = "/v1/embeddings"
"""SGLang wants an id for each text of a list there, and answers 500 to a single one. Closing the response ends such a request."""


class SglangEngine(PluginEngine):
    """Adapter of SGLang's OpenAI server.

    SGLang knows requests by the gateway's own id (`rid`). It aborts every request whose id BEGINS with the given one. Ids are therefore
    only used if they have exactly 32 hexadecimal digits, so that none is the beginning of another.
    """

    kind = "sglang"

    def __init__(self, client: EngineClient, control: EngineClient | None = None) -> None:
        super().__init__(client, control)
        self._info: ServerInfo | None = None
        self._settings_read_s = self._counters_read_s = float("-inf")
        self._counters = Counters()

    async def send(self, path: str, body: bytes, headers: Mapping[str, str], *, request_id: str, priority: int = 0) -> Exchange:
        """Posts `body` with the gateway's id, and with the priority in SGLang's sign if SGLang orders its queue by priority."""
        fields: dict[str, object] = {}
        if _ID.fullmatch(request_id) and path != _EMBEDDINGS:
            fields["rid"] = request_id
        if self.capabilities.priority:
            # Always set, because SGLang puts a request without priority behind all others.
            fields["priority"] = self._signed(priority)
        return await super().send(path, with_own_fields(body, fields), headers, request_id=request_id)

    async def abort(self, request_id: str) -> bool:
        """Asks SGLang to drop a request. Several answers to one request run under ids of their own; closing the response ends them."""
        if not _ID.fullmatch(request_id):
            return False
        try:
            status, _data = await self._client.post("/abort_request", orjson.dumps({"rid": request_id}))
        except EngineError:
            return False
        return status == 200

    async def _apply_stock(self, knobs: Knobs) -> KnobReport:
        """Sets the concurrency cap through SGLang's own route."""
        applied: dict[str, int] = {}
        refused: dict[str, str] = {}
        order: dict[str, int] = msgspec.to_builtins(knobs)
        for name, value in order.items():
            reason = NOT_STOCK[name] if name in NOT_STOCK else await self._cap(value)
            if reason:
                refused[name] = reason
            else:
                applied[name] = value
        return KnobReport(applied=applied, refused=refused)

    async def _read(self, now_s: float) -> EngineSnapshot:
        document = parse_answer(await self._document("/v1/loads?include=core,queues"), Loads, f"engine {self.name} answers /v1/loads")
        if not 0.0 <= now_s - self._settings_read_s < SETTINGS_EVERY_S:
            await self._read_settings(now_s)
        if not 0.0 <= now_s - self._counters_read_s < COUNTERS_EVERY_S:
            await self._read_counters(now_s)
        return self._snapshot(document.loads, now_s)

    def _snapshot(self, loads: Sequence[Load], now_s: float) -> EngineSnapshot:
        capacity = sum(load.max_total_num_tokens for load in loads)
        info, cap, budget = self._info, self._knob("n_run"), self._knob("token_budget")
        assert info is not None
        return EngineSnapshot(
            engine=self.name,
            taken_s=now_s,
            healthy=True,
            running=sum(load.num_running_reqs for load in loads),
            # A request whose grammar is still being compiled waits in a separate queue.
            waiting=sum(load.num_waiting_reqs + load.queues.grammar for load in loads),
            kv_usage=min(1.0, sum(load.num_used_tokens for load in loads) / capacity) if capacity else None,
            kv_capacity_tokens=capacity or None,
            max_num_seqs=cap.value if cap else info.cap,
            max_num_seqs_ceiling=cap.max if cap else info.ceiling,
            max_num_batched_tokens=budget.value if budget else info.chunk,
            max_num_batched_tokens_ceiling=budget.max if budget else None,
            caches_prefixes=None if info.disable_radix_cache is None else not info.disable_radix_cache,
            preemptions_total=self._counters.retracted,
            prompt_tokens_total=sum(load.total_prefill_uncached_tokens for load in loads) + self._counters.cached_tokens,
            generation_tokens_total=self._counters.output_tokens,
        )

    async def _read_settings(self, now_s: float) -> None:
        """Reads SGLang's settings. Its scheduler answers between two steps; if it is too busy, the settings are read again later."""
        try:
            info = parse_answer(await self._document("/server_info"), ServerInfo, f"engine {self.name} answers /server_info")
        except EngineError:
            if self._info is None:
                raise
            info = self._info
        self._settings_read_s = now_s
        own = f"n_run is live ({info.raises})" if info.single else f"no knob is live: {info.several}"
        words = await self._read_plugin(f"{own}; no other knob is")
        self._info = info
        self.capabilities = self._with_plugin(
            EngineCapabilities(
                kind=self.kind,
                version=info.version,
                live_knobs=("n_run",) if info.single else (),
                abort=True,
                priority=info.enable_priority_scheduling,
                load_signals=True,
                token_counters=self._counters.live,
                completion_cap=COMPLETION_CAP,
                control=words,
            )
        )

    async def _read_counters(self, now_s: float) -> None:
        """Reads totals that only the metrics have; without `--enable-metrics` they stay 0."""
        self._counters_read_s = now_s
        try:
            status, data = await self._client.get("/metrics")
        except EngineError:
            return
        if status == 200:
            self._counters = parse_counters(data)
            self.capabilities = msgspec.structs.replace(self.capabilities, token_counters=self._counters.live)

    async def _cap(self, value: int) -> str:
        """Sets the concurrency cap of stock SGLang. Returns why it failed, else an empty text: SGLang answers 200 in both cases."""
        if self._info is None:
            return "the engine was not reached yet"
        if not self._info.single:
            return self._info.several
        try:
            status, data = await self._client.post("/set_internal_state", orjson.dumps({"server_args": {CAP: value}}))
            answer = orjson.loads(data) if status == 200 else None
        except (EngineError, orjson.JSONDecodeError) as error:
            return str(error)
        if answer is None:
            return f"/set_internal_state answers status {status}"
        if not (isinstance(answer, list) and answer and all(done is True for done in answer)):
            return f"SGLang refuses {CAP} = {value}; allowed: 1 to {self._info.ceiling}"
        self._info = self._info.with_cap(value)
        return ""

    def _signed(self, priority: int) -> int:
        clamped = min(max(priority, -MAX_PRIORITY), MAX_PRIORITY)
        low_first = self._info is not None and self._info.schedule_low_priority_values_first
        return clamped if low_first else -clamped


def with_own_fields(body: bytes, fields: Mapping[str, object]) -> bytes:
    """Replaces `rid` and `priority` in the body by the given values; a body that is not a JSON object stays unchanged.

    A client's own `rid` must be removed: when that client disconnects, SGLang aborts every request whose id begins with it.
    """
    start = _START.match(body)
    # An escape may hide a name (`"r\u0069d"`). Such bodies are parsed in full, as are bodies that contain one of the two names.
    if start is not None and b'"rid"' not in body and b'"priority"' not in body and b"\\u00" not in body:
        if not fields:
            return body
        return body[: start.end()] + orjson.dumps(fields)[1:-1] + b"," + body[start.end() :]
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    if not isinstance(document, dict):
        return body
    document.pop("rid", None)
    document.pop("priority", None)
    try:
        return orjson.dumps(document | dict(fields))
    except orjson.JSONEncodeError:
        # It reads deeper documents than it writes.
        return json.dumps(document | dict(fields)).encode()
