"""What changes the configuration of a running gateway: a signal, the file of engines, and DNS."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from hmas.controller.config.schema import Config
from hmas.controller.core.errors import ConfigError
from hmas.controller.gateway.app import Gateway
from hmas.controller.gateway.instances.dns_discovery import DnsDiscovery
from hmas.controller.runtime import logs
from hmas.controller.runtime.clock import Clock

WATCH_S = 1.0
log = logging.getLogger(__name__)


class Reloads:
    """Holds the configuration that was read last, and gives it to the gateway with the engines that DNS names.

    Attributes:
        gateway: None until it serves (`serves`).
    """

    def __init__(self, config: Config, read: Callable[[], Config], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._accepted = config
        self._names = DnsDiscovery(config.engines_dns, self._names_told)
        self.gateway: Gateway | None = None
        self._missed = ""

    async def at_start(self) -> Config:
        """The configuration to start with, once DNS has been asked.

        Raises:
            ConfigError: A library for SRV records is missing.
        """
        await self._names.refresh(self._clock.now_s(), at_start=True)
        return self._names.with_found(self._accepted)

    def serves(self, gateway: Gateway) -> None:
        """Takes the gateway once it serves, and applies what has changed while it started."""
        self.gateway = gateway
        if self._missed:
            self.read_again(self._missed)

    def read_again(self, source: str = "operator", *, even_if_same: bool = True) -> None:
        """Reads the configuration again and applies it; one that is wrong changes nothing. `source`: see `Gateway.reload`."""
        if self.gateway is None:
            self._missed = source
            return
        try:
            before, self._accepted = self._accepted, self._read()
        except ConfigError as error:
            log.error("reading the configuration again: %s; everything stays as it was", error)  # noqa: TRY400 - the message says it all
            self.gateway.reload_refused(str(error), source)
            return
        if self._accepted == before and not even_if_same:
            return
        self._apply(source)
        logs.configure(self._accepted.logging.level, self._accepted.logging.format, "gateway")

    def watches(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run beside the gateway."""
        return [self._watch_file(), self._names.run(self._clock, partial(self._apply, "dns"))]

    async def _watch_file(self) -> None:
        """Reads the configuration again whenever `engines_file` is another file than before, or has other content.

        One that is away is no change.
        """
        seen: tuple[str, object] = "", None
        while True:
            await asyncio.sleep(WATCH_S)
            name = self._accepted.engines_file
            if not name or self.gateway is None:
                continue
            stamp = await asyncio.to_thread(_stamp, name)
            if stamp is None or (name, stamp) == seen:
                continue
            # The first look at a file only makes up for what has changed since it was read with the configuration.
            first, seen = name != seen[0], (name, stamp)
            try:
                self.read_again("file", even_if_same=not first)
            except Exception:
                log.exception("reading %s again failed; everything stays as it was", name)

    def _apply(self, source: str) -> None:
        if self.gateway is None:
            self._missed = source
        else:
            self.gateway.reload(self._names.with_found(self._accepted), source)

    def _names_told(self, name: str, reason: str) -> None:
        log.log(logging.WARNING if reason else logging.INFO, "engines_dns %s: %s", name, reason or "answers again")
        if self.gateway is not None:
            self.gateway.names_told(name, reason)


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = Path(file).expanduser().stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
