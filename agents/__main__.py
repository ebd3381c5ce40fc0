"""`python -m hmas.agents NAME --config FILE` runs one agent in its own process until SIGTERM."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

from hmas.agents.runtime.shell import AGENTS, instance_name, run_agent
from hmas.controller.bus.redis_bus import RedisBus
from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError, HmasError
from hmas.controller.runtime import logs
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.runtime.notify import Notifier
from hmas.controller.runtime.process import set_niceness
from hmas.controller.runtime.signals import stop_flags


def main(argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> int:
    """Runs the agent. Returns the exit status: 0 after a clean stop, 2 if the configuration does not allow a start."""
    env = os.environ if env is None else env
    parser = argparse.ArgumentParser(prog="python -m hmas.agents", description="Runs one H-MAS agent until SIGTERM.")
    parser.add_argument("name", choices=list(AGENTS), help="which agent")
    parser.add_argument("--config", metavar="FILE", help="configuration file (YAML or TOML); HMAS_* variables stand above it")
    options = parser.parse_args(argv)
    try:
        config = load_config(options.config, env)
        if not config.bus.url:
            raise ConfigError(
                "bus.url is empty: name a Redis server there or in HMAS_BUS__URL (`hmas up` does so for the agents it starts)"
            )
        set_niceness(config.agents.nice, spare_cpu_only=config.agents.spare_cpu_only)
        logs.configure(config.logging.level, config.logging.format, options.name)
        asyncio.run(_serve(options.name, config, env))
    except HmasError as error:
        print(f"agent {options.name}: {error}", file=sys.stderr)  # noqa: T201 - logging may not be configured yet
        return 2
    return 0


async def _serve(name: str, config: Config, env: Mapping[str, str]) -> None:
    bus = RedisBus(config.bus.url, config.bus.key_prefix)
    try:
        with stop_flags() as flags:
            await run_agent(name, config, bus, SystemClock(), stop=flags.stop, instance=instance_name(env), notify=Notifier(env))
    finally:
        await bus.close()


if __name__ == "__main__":
    raise SystemExit(main())
