"""Parses `--engine`: an embedded engine to start, or a server that runs already."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args
from urllib.parse import urlsplit

import click
import msgspec

from hmas.controller.config.schema import EngineConfig
from hmas.controller.runtime.ports import free_ports
from hmas.engines.base import EngineKind

DEFAULT_PROFILE = "demo-small"
ALLOWED = "sim, sim:PROFILE, sim:PROFILE@SPEED, vllm=http://HOST:PORT, sglang=http://HOST:PORT, openai=http://HOST:PORT or http://HOST:PORT"
_SIM = re.compile(r"^sim(?::(?P<profile>[^@]+))?(?:@(?P<speed>\d+(?:\.\d+)?))?$")


@dataclass(frozen=True, slots=True)
class Target:
    """One engine from the command line.

    Attributes:
        config: The engine's section of the gateway's configuration.
        profile: Profile of an embedded engine to start; empty for a server that runs already.
        speed: Speed of an embedded engine, as a multiple of its profile's.
    """

    config: EngineConfig
    profile: str = ""
    speed: float = 1.0


def parse_targets(texts: Sequence[str]) -> list[Target]:
    """Parses every `--engine`; names are numbered by kind: `sim-1`, `sim-2`, `vllm-1`, `engine-1`.

    Raises:
        click.UsageError: A text has none of the allowed forms, or an address is given twice.
    """
    counts: dict[str, int] = {}
    targets = [_parse(text, counts, port) for text, port in zip(texts, free_ports(len(texts)), strict=True)]
    urls = [target.config.url for target in targets]
    for url in urls:
        if urls.count(url) > 1:
            raise click.UsageError(f"--engine {url} is given twice")
    return targets


def _parse(text: str, counts: dict[str, int], port: int) -> Target:
    sim = _SIM.match(text)
    if sim:
        speed = float(sim["speed"] or 1.0)
        if not 0.01 <= speed <= 1000:
            raise click.UsageError(f"--engine {text}: speed {speed:g}; allowed: 0.01 to 1000")
        name = _number("sim", counts)
        config = EngineConfig(name=name, url=f"http://127.0.0.1:{port}", kind="sim")
        return Target(config, sim["profile"] or DEFAULT_PROFILE, speed)
    kind, equals, url = text.partition("=")
    if not equals:
        kind, url = "auto", text
    kinds = get_args(EngineKind)
    if kind not in kinds or not _is_address(url):
        raise click.UsageError(f"--engine {text!r} is no engine; allowed: {ALLOWED}")
    document = {"name": _number("engine" if kind == "auto" else kind, counts), "url": url.rstrip("/"), "kind": kind}
    try:
        return Target(msgspec.convert(document, EngineConfig))
    except msgspec.ValidationError:
        raise click.UsageError(f"--engine {text!r}: give the base address without a path, such as http://127.0.0.1:8000") from None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        return False


def _number(word: str, counts: dict[str, int]) -> str:
    counts[word] = counts.get(word, 0) + 1
    return f"{word}-{counts[word]}"
