"""The study: every front in turn, round by round, before the same two engines."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean, quantiles
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from hmas.controller.runtime.ports import free_port
from hmas.planning import StudyError
from hmas_lab.prefix_live.chats import Chats
from hmas_lab.prefix_live.fronts import FRONTS, EngineAt, running_front, there
from hmas_lab.prefix_live.users import ANSWER_TOKENS, TPOT_MS, TTFT_MS, Turn, Users
from hmas_lab.result_files import VERSION
from hmas_lab.vllm_engine import VllmServer, running_each

MODEL = "smollm2"
KV_BYTES = 1 << 30
QUESTION_TOKENS = 120
SETTLE_S = 2.0
MAX_MODEL_LEN = 4096
PERCENTILE_95 = 94


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        users: At the same time, each waiting for its answers.
        seconds: Length of a run.
        rounds: How often each front has its turn.
    """

    users: Annotated[int, Meta(ge=1, le=64)] = 8
    seconds: Annotated[float, Meta(ge=5, le=600)] = 60.0
    rounds: Annotated[int, Meta(ge=1, le=20)] = 3
    seed: int = 1
    fronts: tuple[str, ...] = tuple(FRONTS)


@asynccontextmanager
async def engines_with_caches(python: Path, model: Path, folder: Path) -> AsyncIterator[list[EngineAt]]:
    """Two vLLM with prefix caches, each on a core of its own; they report cached tokens and publish KV events.

    Raises:
        DemoBroken: One does not start.
    """
    servers, ports = {}, {}
    for core in (0, 1):
        events, replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        publisher = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events.replace("127.0.0.1", "*")}
        publisher |= {"replay_endpoint": replay.replace("127.0.0.1", "*"), "topic": "kv-events"}
        flags = ("--enable-prefix-caching", "--enable-prompt-tokens-details", "--kv-events-config", msgspec.json.encode(publisher).decode())
        name = f"vllm-{core}"
        ports[name] = (events, replay)
        servers[name] = VllmServer(
            python=python, model=model, max_model_len=MAX_MODEL_LEN, kv_cache_bytes=KV_BYTES, cores=str(core), flags=flags
        )
    async with running_each(servers, folder, MODEL) as urls:
        yield [EngineAt(url, *ports[name]) for name, url in urls.items()]


class Site(NamedTuple):
    """Where it is run: the engines, the environments of the other routers, and a folder for logs."""

    engines: Sequence[EngineAt]
    peers: Path
    folder: Path


async def run(settings: Settings, site: Site, texts: Sequence[str], say: Callable[[str], None]) -> dict[str, Any]:
    """Returns a JSON-ready document: settings, which fronts were not to be had, the figures of each run, and their means.

    Raises:
        StudyError: A front does not come up, or a request fails.
    """
    names = [name for name in settings.fronts if there(name, site.peers)]
    rows: list[dict[str, Any]] = []
    for number in range(settings.rounds):
        # Each round begins with another front, so that no front always follows the same one.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            label = f"{number}-{names.index(name)}"
            async with running_front(FRONTS[name], site.engines, site.peers, site.folder / label) as url:
                await asyncio.sleep(SETTLE_S)
                chats = Chats(texts, settings.seed + number, label)
                turns = await Users(url, MODEL, chats, settings.seed + number).run(settings.users, settings.seconds)
            row = {"front": name, "round": number, **figures(turns, settings.seconds)}
            rows.append(row)
            say(f"round {number + 1}, {name}: {row['turns']:.0f} answers, {row['hit']:.1%} cached, TTFT {row['ttft_ms_p50']:.0f} ms")
    return {
        "version": VERSION,
        "settings": msgspec.to_builtins(settings),
        "targets_ms": [TTFT_MS, TPOT_MS],
        "answer_tokens": ANSWER_TOKENS,
        "missing": [name for name in settings.fronts if name not in names],
        "fronts": {name: FRONTS[name].words for name in names},
        "summary": {name: _means([row for row in rows if row["front"] == name]) for name in names},
        "rows": rows,
    }


def figures(turns: Sequence[Turn], seconds: float) -> dict[str, float]:
    """Figures of one run.

    Raises:
        StudyError: A request failed, or there are too few for a quantile.
    """
    failed = [turn.error for turn in turns if turn.error]
    if failed or len(turns) < 2:
        raise StudyError(f"{len(failed)} of {len(turns)} requests failed: {failed[0] if failed else 'too few for figures'}")
    prompts = sum(turn.prompt_tokens for turn in turns)
    ttft = [turn.ttft_ms for turn in turns]
    return {
        "turns": len(turns),
        "good_rps": sum(turn.ttft_ms <= TTFT_MS and turn.tpot_ms <= TPOT_MS for turn in turns) / seconds,
        "hit": sum(turn.cached_tokens for turn in turns) / prompts,
        "at_best": sum(turn.at_best for turn in turns) / prompts,
        "ttft_ms_p50": quantiles(ttft, n=2)[0],
        "ttft_ms_p95": quantiles(ttft, n=100, method="inclusive")[PERCENTILE_95],
        "tpot_ms_p50": quantiles([turn.tpot_ms for turn in turns], n=2)[0],
    }


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {name: fmean(row[name] for row in rows) for name in rows[0] if name not in {"front", "round"}}
