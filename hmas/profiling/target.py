"""The engine to measure: whether it answers, what it serves, and what it reports about itself."""

import re
from typing import Any

import aiohttp
import msgspec
import orjson

from hmas.controller.core.errors import HmasError
from hmas.engines.errors import EngineError
from hmas.engines.registry import connect_engine

CHAT = "/v1/chat/completions"
_TIMEOUT_S = 10.0
_BLOCK_SIZE = re.compile(rb'block_size="(\d+)"')


class ProbeError(HmasError):
    """An engine cannot be measured; the error says what it answered and what to change."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's report about itself; None for values that it does not report.

    Attributes:
        url: Base address without /v1.
        model: The requested model. `root`: the model behind that name, such as a path on the Hub.
        kind: Kind as detected by `hmas.engines.registry`: `vllm`, `sim` or `openai`.
        version: The engine's own version text.
        max_model_len: Prompt and output of one request together, tokens.
        kv_tokens: Tokens its KV cache holds. `block_size`: tokens per block.
        max_num_seqs, max_num_batched_tokens: Its scheduler's limits.
    """

    url: str
    model: str
    root: str = ""
    kind: str = "openai"
    version: str = ""
    max_model_len: int | None = None
    kv_tokens: int | None = None
    block_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


async def look_at(url: str, *, model: str = "", api_key: str = "") -> Target:
    """Reads an engine's properties for a model, by default the first that it serves. The URL has no /v1; an API key is sent if given.

    Raises:
        ProbeError: The engine does not answer, needs a key, lists no model, or does not serve this one.
    """
    card = await model_card(url, model=model, api_key=api_key)
    engine = await connect_engine(name="target", url=url, api_key=api_key)
    try:
        snapshot = await engine.snapshot(0.0)
        version = engine.capabilities.version
        _status, metrics = await engine.call("GET", "/metrics")
    except EngineError:
        metrics, version = b"", ""
    finally:
        await engine.close()
    block = _BLOCK_SIZE.search(metrics)
    length = card.get("max_model_len")
    return Target(
        url=url,
        model=str(card["id"]),
        root=str(card.get("root") or ""),
        kind=engine.capabilities.kind,
        version=version,
        max_model_len=length if isinstance(length, int) else None,
        kv_tokens=snapshot.kv_capacity_tokens,
        block_size=int(block[1]) if block else None,
        max_num_seqs=snapshot.max_num_seqs_ceiling or snapshot.max_num_seqs,
        max_num_batched_tokens=snapshot.max_num_batched_tokens_ceiling or snapshot.max_num_batched_tokens,
    )


def headers_with(api_key: str) -> dict[str, str]:
    """The headers of a request with this key, empty for none."""
    headers = {"content-type": "application/json"}
    return headers | {"authorization": f"Bearer {api_key}"} if api_key else headers


def refusal(url: str, path: str, status: int, body: bytes) -> str:
    """The meaning of an unsuccessful answer, as text."""
    where = f"{url}{path} answers {status}"
    if status in (401, 403):
        return f"{where}: it wants an API key, or another one; name the environment variable that holds it with --api-key-env"
    return f"{where}: {_message(body)}"


async def model_card(url: str, *, model: str = "", api_key: str = "") -> dict[str, Any]:
    """The entry of a model in /v1/models; the arguments as for `look_at`.

    Raises:
        ProbeError: The address does not answer, needs a key, lists no model, or does not serve this one.
    """
    path = "/v1/models"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session,
            session.get(url + path, headers=headers_with(api_key)) as response,
        ):
            status, body = response.status, await response.read()
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
        raise ProbeError(f"address {url!r}; allowed: http://HOST:PORT") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ProbeError(f"{url}{path}: nothing answers ({str(error) or type(error).__name__}); give the engine's base address") from error
    if status != 200:
        raise ProbeError(refusal(url, path, status, body))
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProbeError(f"{url}{path} answers with no JSON: {body[:80]!r}") from error
    cards = document.get("data") if isinstance(document, dict) else None
    served = [card for card in cards or () if isinstance(card, dict) and card.get("id")]
    if not served:
        raise ProbeError(f"{url}{path} lists no model: {body[:80]!r}")
    for card in served:
        if model in ("", card["id"]):
            return dict(card)
    raise ProbeError(f"model {model!r} is not served; allowed: {', '.join(str(card['id']) for card in served)}")


def _message(body: bytes) -> str:
    try:
        error = orjson.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return repr(body[:120])
