"""vLLM over HTTP: load signals from its metrics, live control through the plugin, aborts if its development endpoints are open.

Stock vLLM's scheduler cannot be controlled, and a request is aborted only by closing its connection. Started with
`VLLM_SERVER_DEV_MODE=1`, vLLM also accepts `/abort_requests` and shows its settings under `/server_info`. With the H-MAS plugin
(docs/engines.md) its knobs are live.
"""

from collections.abc import Iterable, Mapping

import msgspec
import orjson

from hmas.engines.base import EngineCapabilities, EngineSnapshot, KnobName, KnobReport, Knobs
from hmas.engines.client import CONTROL_TIMEOUT_S, EngineClient
from hmas.engines.control import ControlState, PluginEngine
from hmas.engines.errors import EngineError, EngineProtocolError, EngineUnavailable
from hmas.engines.http.exchange import Exchange
from hmas.engines.openai import COMPLETION_CAP, WINDOW_ONLY, read_samples

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
CACHE_CONFIG = "vllm:cache_config_info"
PREEMPTIONS = "vllm:num_preemptions_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
_READ = (RUNNING, WAITING, KV_USAGE, CACHE_CONFIG, PREEMPTIONS, PROMPT_TOKENS, GENERATION_TOKENS)

_SETTINGS_TIMEOUT_S = 10.0
_CONTROL_READ_EVERY_S = 5.0
"""How often the active knobs are read again, because another client may have changed them."""
_CONTROL_WAIT_S = 1.0

MESSAGES = "/v1/messages"
PRIORITY = "x-vllm-priority"
"""Header with a request's priority, which counts before the one in the body. Bodies of Messages have no such field in vLLM."""
ID_PREFIXES: Mapping[str, str] = {"/v1/chat/completions": "chatcmpl-", "/v1/completions": "cmpl-"}


class VllmEngine(PluginEngine):
    """Adapter of vLLM's OpenAI server.

    With data parallelism there are several engine cores, each with a cap of its own. Snapshots have the sum over the cores, as for their
    load; one number cannot cap all of them, so `n_run` is not live then.
    """

    kind = "vllm"

    def __init__(self, client: EngineClient, control: EngineClient | None = None) -> None:
        super().__init__(client, control)
        self._settings: dict[str, int] = {}
        self._cores = 1
        self._control_read_s = float("-inf")
        self._follows, self._counted = False, 0

    async def send(self, path: str, body: bytes, headers: Mapping[str, str], *, request_id: str, priority: int = 0) -> Exchange:
        """As `OpenAIEngine.send`; with a Messages request the priority goes as a header. Older versions need it in the body of others."""
        if path == MESSAGES and priority and self.capabilities.priority:
            headers, priority = {**headers, PRIORITY: str(priority)}, 0
        return await super().send(path, body, headers, request_id=request_id, priority=priority)

    async def abort(self, request_id: str) -> bool:
        """Asks vLLM to drop a request, by the id under which it was sent; returns False if the development endpoints are closed."""
        if not self.capabilities.abort:
            return False
        # The request's path is not known here, so every possible id is sent; vLLM skips ids that it does not have.
        ids = [*(prefix + request_id for prefix in ID_PREFIXES.values()), f"cmpl-{request_id}-0"]
        try:
            status, data = await self._client.post("/abort_requests", orjson.dumps({"request_ids": ids}))
            # vLLM's answer is JSON or empty; a proxy's error page with status 200 is neither.
            orjson.loads(data or b"null")
        except (EngineError, orjson.JSONDecodeError):
            return False
        return status == 200

    async def _read(self, now_s: float) -> EngineSnapshot:
        if not self._follows:
            # It may have been restarted with other settings.
            await self._probe()
            self._control_read_s = float("-inf")
        self._follows = False
        status, data = await self._client.get("/metrics")
        if status != 200:
            raise EngineUnavailable(f"engine {self.name} answers /metrics with status {status}")
        series = parse_metrics(data)
        running = _values(series[RUNNING])
        if not running:
            raise EngineProtocolError(f"engine {self.name} answers /metrics without {RUNNING}: {data[:80]!r}")
        prompt_tokens, generation_tokens = (int(sum(_values(series[name]))) for name in (PROMPT_TOKENS, GENERATION_TOKENS))
        if prompt_tokens + generation_tokens < self._counted:
            # It counts from 0 again: it was restarted, perhaps without its plugin, and the knobs have its own values.
            self._plugin, self._control_read_s = None, float("-inf")
            await self._probe()
        self._counted = prompt_tokens + generation_tokens
        cores = len({labels.get("engine", "") for labels, _value in series[RUNNING]})
        if cores != self._cores or not 0.0 <= now_s - self._control_read_s < _CONTROL_READ_EVERY_S:
            self._cores = cores
            await self._read_control(now_s)
        usage, self._follows = _values(series[KV_USAGE]), True
        return EngineSnapshot(
            engine=self.name,
            taken_s=now_s,
            healthy=True,
            running=int(sum(running)),
            waiting=int(sum(_values(series[WAITING]))),
            kv_usage=sum(usage) / len(usage) if usage else None,
            kv_capacity_tokens=capacity_tokens(series[CACHE_CONFIG]),
            max_num_seqs=self._of_all_cores(self._value("n_run", "max_num_seqs")),
            max_num_batched_tokens=self._value("token_budget", "max_num_batched_tokens"),
            max_num_seqs_ceiling=self._of_all_cores(knob.max if (knob := self._knob("n_run")) else None),
            max_num_batched_tokens_ceiling=knob.max if (knob := self._knob("token_budget")) else None,
            caches_prefixes=_caches(series[CACHE_CONFIG]),
            preemptions_total=int(sum(_values(series[PREEMPTIONS]))),
            prompt_tokens_total=prompt_tokens,
            generation_tokens_total=generation_tokens,
        )

    async def apply_knobs(self, knobs: Knobs) -> KnobReport:
        """As `PluginEngine.apply_knobs`; refuses `n_run` if there are several cores."""
        if self._cores == 1 or knobs.n_run is None:
            return await super().apply_knobs(knobs)
        rest = msgspec.structs.replace(knobs, n_run=None)
        report = KnobReport() if rest == Knobs() else await super().apply_knobs(rest)
        return msgspec.structs.replace(report, refused=report.refused | {"n_run": self._several})

    async def _probe(self) -> None:
        version = str((await self._document("/version")).get("version", ""))
        scheduler = await self._scheduler_settings()
        # If the route exists, a GET on it answers 405; otherwise 404.
        status, _data = await self._client.get("/abort_requests")
        self._settings = {name: value for name, value in scheduler.items() if isinstance(value, int)}
        self.capabilities = EngineCapabilities(
            kind=self.kind,
            version=version,
            abort=status == 405,
            priority=scheduler.get("policy") == "priority",
            load_signals=True,
            token_counters=True,
            completion_cap=COMPLETION_CAP,
        )

    async def _read_control(self, now_s: float) -> None:
        """Reads the state of the plugin's knobs."""
        self._control_read_s = now_s
        # A known plugin answers between two steps; the reading of the engine's load must not wait long for it.
        words = await self._read_plugin(WINDOW_ONLY, CONTROL_TIMEOUT_S if self._plugin is None else _CONTROL_WAIT_S)
        self.capabilities = msgspec.structs.replace(self._with_plugin(self.capabilities), control=words)

    @property
    def _several(self) -> str:
        """Why there is no single cap, as text."""
        return f"{self._cores} data-parallel engine cores; a live cap needs a single one"

    def _usable(self, state: ControlState) -> ControlState:
        if self._cores == 1 or "n_run" not in state.knobs:
            return state
        rest = {name: knob for name, knob in state.knobs.items() if name != "n_run"}
        return msgspec.structs.replace(state, knobs=rest, absent={"n_run": self._several, **state.absent})

    def _of_all_cores(self, value: int | None) -> int | None:
        return None if value is None else self._cores * value

    def _value(self, name: KnobName, setting: str) -> int | None:
        """A knob's active value as the plugin reports it, else its start-up value if the engine shows it."""
        knob = self._knob(name)
        return knob.value if knob is not None else self._settings.get(setting)

    async def _scheduler_settings(self) -> dict[str, object]:
        """Reads the scheduler's configuration; empty if the development endpoints are closed."""
        try:
            status, data = await self._client.get("/server_info?config_format=json", timeout_s=_SETTINGS_TIMEOUT_S)
            scheduler = orjson.loads(data)["vllm_config"]["scheduler_config"] if status == 200 else {}
        except (EngineError, ValueError, KeyError, TypeError):
            return {}
        return scheduler if isinstance(scheduler, dict) else {}


Samples = list[tuple[dict[str, str], float]]


def parse_metrics(metrics: bytes) -> dict[str, Samples]:
    """Labels and values of the metrics in `_READ`, by name."""
    series: dict[str, Samples] = {name: [] for name in _READ}
    for name, labels, value in read_samples(metrics, _READ):
        series[name].append((labels, value))
    return series


def _values(samples: Samples) -> list[float]:
    return [value for _labels, value in samples]


def capacity_tokens(samples: Iterable[tuple[Mapping[str, str], float]]) -> int | None:
    """The capacity of the KV caches of all engine cores together, in tokens."""
    total = of_all = 0
    for labels, _value in samples:
        tokens, blocks, size = (labels.get(name, "") for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size"))
        if tokens.isdigit():
            total += int(tokens)
        elif blocks.isdigit() and size.isdigit():
            # Each core reports the blocks of all of them.
            of_all = max(of_all, int(blocks) * int(size))
    return total or of_all or None


def _caches(samples: Iterable[tuple[Mapping[str, str], float]]) -> bool | None:
    """Whether prefix caching is on, in all engine cores alike."""
    words = next((labels.get("enable_prefix_caching") for labels, _value in samples), None)
    return words == "True" if words in {"True", "False"} else None
