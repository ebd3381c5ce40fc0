"""Perception and prediction in one process, by the rules or by the truth: what stands in for the two agents in the live ablation."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import click
import msgspec

from hmas.agents.runtime.shell import AgentShell
from hmas.controller.bus.base import Bus
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.messages import REQUESTS, TELEMETRY, Completion, Message, RequestNotice, SystemSnapshot
from hmas.controller.runtime import logs
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.runtime.notify import Notifier
from hmas.controller.runtime.process import set_niceness
from hmas.controller.runtime.signals import stop_flags
from hmas_lab.agents.beliefs import Believer
from hmas_lab.agents.makers import make_believer
from hmas_lab.agents.requests import Truth
from hmas_lab.agents.settings import BELIEFS, Belief

MAX_AGE_S = 10.0


class StubAgents:
    """Binds a believer to the two agents' streams; see `hmas.agents.runtime.shell.Agent`."""

    name = "teller"
    streams: tuple[str, ...] = (REQUESTS, TELEMETRY)
    max_age_s: Mapping[type[Message], float] = MappingProxyType({RequestNotice: MAX_AGE_S})

    def __init__(self, believer: Believer) -> None:
        self._believer = believer

    async def recover(self, bus: Bus, now_s: float) -> None:
        """Every run begins without a memory."""

    def handle(self, messages: Sequence[Message], now_s: float) -> list[Message]:
        """Learns what ended and how the instances stand, then answers all requests at once."""
        for message in messages:
            if isinstance(message, SystemSnapshot):
                self._believer.observe(message)
            elif isinstance(message, Completion):
                self._believer.learn(message)
        notices = [message for message in messages if isinstance(message, RequestNotice)]
        features, costs = self._believer.tell(notices, now_s)
        return [*features, *costs]


def write_truths(path: Path, truths: Mapping[str, Truth]) -> None:
    """Writes what is true of each prompt, by the excerpt that the gateway shows of it."""
    path.write_bytes(msgspec.json.encode(truths))


def read_truths(path: Path) -> dict[str, Truth]:
    """Reads such a file.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Truth])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: no file of truths: {error}") from error


@click.command(hidden=True)
@click.option("--config", "config_path", required=True, help="Configuration file of the gateway.")
@click.option("--belief", type=click.Choice(BELIEFS), required=True, help="What it goes by.")
@click.option("--truths", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What is true of each prompt, for an oracle.")
def teller(config_path: str, belief: str, truths: Path | None) -> None:
    """Answer for perception and prediction on a gateway's bus until SIGTERM (used by `hmas-lab agents`)."""
    config = load_config(config_path, os.environ)
    if not config.bus.url:
        raise ConfigError("bus.url is empty: name the server of the gateway's bus there")
    known = read_truths(truths) if truths is not None else {}
    believer = make_believer(msgspec.convert(belief, Belief), lambda notice: known.get(notice.excerpt), config.slo.scale)
    if believer is None:
        raise ConfigError(f"belief is {belief!r}, which tells nothing; allowed: {', '.join(BELIEFS[1:])}")
    set_niceness(config.agents.nice, spare_cpu_only=config.agents.spare_cpu_only)
    logs.configure(config.logging.level, config.logging.format, StubAgents.name)
    asyncio.run(_serve(StubAgents(believer), config))


async def _serve(agent: StubAgents, config: Config) -> None:
    bus = RedisBus(config.bus.url, config.bus.key_prefix)
    try:
        with stop_flags() as flags:
            await AgentShell(agent=agent, bus=bus, clock=SystemClock(), notify=Notifier(os.environ)).run(flags.stop)
    finally:
        await bus.close()
