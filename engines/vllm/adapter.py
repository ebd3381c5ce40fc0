"""vLLM over HTTP: load signals from its metrics, aborts and settings where its development endpoints are open.

Stock vLLM takes no order about its scheduler, and an abort only as a closed connection. Started with `VLLM_SERVER_DEV_MODE=1` it also
takes `/abort_requests` and shows its settings under `/server_info`.
"""

import re
from collections.abc import Iterable, Mapping

import orjson

from engines.base import EngineCapabilities, EngineSnapshot
from engines.client import EngineClient
from engines.errors import EngineError, EngineProtocolError, EngineUnavailable
from engines.openai import OpenAIEngine

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
CACHE_CONFIG = "vllm:cache_config_info"
PREEMPTIONS = "vllm:num_preemptions_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
_READ = (RUNNING, WAITING, KV_USAGE, CACHE_CONFIG, PREEMPTIONS, PROMPT_TOKENS, GENERATION_TOKENS)

_SAMPLE = re.compile(r"(vllm:\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SETTINGS_TIMEOUT_S = 10.0

ID_PREFIXES: Mapping[str, str] = {"/v1/chat/completions": "chatcmpl-", "/v1/completions": "cmpl-"}


class VllmEngine(OpenAIEngine):
    """Adapter of vLLM's OpenAI server."""

    kind = "vllm"

    def __init__(self, client: EngineClient, control: EngineClient | None = None) -> None:
        super().__init__(client, control)
        self._settings: dict[str, int] = {}

    async def abort(self, request_id: str) -> bool:
        """Tells vLLM to drop a request, by the id it was sent under; False where its development endpoints are shut."""
        if not self.capabilities.abort:
            return False
        # An id that vLLM does not have is skipped, and which path the request came by is not known here.
        ids = [*(prefix + request_id for prefix in ID_PREFIXES.values()), f"cmpl-{request_id}-0"]
        try:
            status, data = await self._client.post("/abort_requests", orjson.dumps({"request_ids": ids}))
            # The answer is JSON or empty; a proxy's page with status 200 is neither.
            orjson.loads(data or b"null")
        except (EngineError, orjson.JSONDecodeError):
            return False
        return status == 200

    async def _read(self, now_s: float) -> EngineSnapshot:
        if not self.capabilities.load_signals:
            await self._probe()
        status, data = await self._client.get("/metrics")
        if status != 200:
            raise EngineUnavailable(f"engine {self.name} answers /metrics with status {status}")
        series = parse_metrics(data.decode("utf-8", "replace"))
        running = _values(series[RUNNING])
        if not running:
            raise EngineProtocolError(f"engine {self.name} answers /metrics without {RUNNING}: {data[:80]!r}")
        usage = _values(series[KV_USAGE])
        return EngineSnapshot(
            engine=self.name,
            taken_s=now_s,
            healthy=True,
            running=int(sum(running)),
            waiting=int(sum(_values(series[WAITING]))),
            kv_usage=sum(usage) / len(usage) if usage else None,
            kv_capacity_tokens=_capacity(series[CACHE_CONFIG]),
            max_num_seqs=self._settings.get("max_num_seqs"),
            max_num_batched_tokens=self._settings.get("max_num_batched_tokens"),
            preemptions_total=int(sum(_values(series[PREEMPTIONS]))),
            prompt_tokens_total=int(sum(_values(series[PROMPT_TOKENS]))),
            generation_tokens_total=int(sum(_values(series[GENERATION_TOKENS]))),
        )

    async def _probe(self) -> None:
        version = str((await self._document("/version")).get("version", ""))
        scheduler = await self._scheduler_settings()
        # Where the route exists but not for GET, the answer is 405; an open server answers 404.
        status, _data = await self._client.get("/abort_requests")
        self._settings = {name: value for name, value in scheduler.items() if isinstance(value, int)}
        self.capabilities = EngineCapabilities(
            kind=self.kind,
            version=version,
            abort=status == 405,
            priority=scheduler.get("policy") == "priority",
            load_signals=True,
        )

    async def _scheduler_settings(self) -> dict[str, object]:
        """The scheduler's configuration, empty where the development endpoints are shut."""
        try:
            status, data = await self._client.get("/server_info?config_format=json", timeout_s=_SETTINGS_TIMEOUT_S)
            scheduler = orjson.loads(data)["vllm_config"]["scheduler_config"] if status == 200 else {}
        except (EngineError, ValueError, KeyError, TypeError):
            return {}
        return scheduler if isinstance(scheduler, dict) else {}


Samples = list[tuple[dict[str, str], float]]


def parse_metrics(text: str) -> dict[str, Samples]:
    """Labels and value of the samples that are read here, by name; lines that are no samples are passed over."""
    series: dict[str, Samples] = {name: [] for name in _READ}
    for line in text.splitlines():
        if not line.startswith(_READ):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None or match[1] not in series:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        series[match[1]].append((dict(_LABEL.findall(match[2] or "")), value))
    return series


def _values(samples: Samples) -> list[float]:
    return [value for _labels, value in samples]


def _capacity(samples: Iterable[tuple[Mapping[str, str], float]]) -> int | None:
    """Tokens that the KV caches of all engine cores hold together."""
    total = 0
    for labels, _value in samples:
        tokens, blocks, size = (labels.get(name, "") for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size"))
        if tokens.isdigit():
            total += int(tokens)
        elif blocks.isdigit() and size.isdigit():
            total += int(blocks) * int(size)
    return total or None
