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
RETRY_LOOKS = 10
"""At every so many looks a file is read again that was refused."""
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
        self._asked: dict[str, bool] = {}
        self._may_read = asyncio.Event()
        self._refused = ""

    async def at_start(self) -> Config:
        """The configuration to start with, once DNS has been asked.

        Raises:
            ConfigError: A library for SRV records is missing.
        """
        await self._names.refresh(self._clock.now_s(), at_start=True)
        return self._names.with_found(self._accepted)

    def serves(self, gateway: Gateway) -> None:
        """Takes the gateway once it serves; what has changed while it started is applied soon after."""
        self.gateway = gateway
        if self._asked:
            self._may_read.set()

    def read_again(self, source: str = "operator", *, even_if_same: bool = True) -> None:
        """Has the configuration read again soon and applied; one that is wrong changes nothing. `source`: see `Gateway.reload`."""
        self._asked[source] = even_if_same or self._asked.get(source, False)
        if self.gateway is not None:
            self._may_read.set()

    def watches(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run beside the gateway."""
        return [self._read_when_asked(), self._watch_file(), self._names.run(self._clock, partial(self._apply, "dns"))]

    async def _read_when_asked(self) -> None:
        """Reads one at a time, and once for all that asked for the same source meanwhile."""
        while True:
            await self._may_read.wait()
            self._may_read.clear()
            while self._asked:
                source = next(iter(self._asked))
                try:
                    await self._read_and_apply(source, even_if_same=self._asked.pop(source))
                except Exception:
                    log.exception("reading the configuration again failed; everything stays as it was")

    async def _read_and_apply(self, source: str, *, even_if_same: bool) -> None:
        """Reads in a thread, since a thousand engines take seconds, and applies the result on the loop."""
        try:
            before, self._accepted = self._accepted, await asyncio.to_thread(self._read)
        except ConfigError as error:
            if source == "file":
                told, self._refused = self._refused, str(error)
                if told == self._refused:
                    return
            log.error("reading the configuration again: %s; everything stays as it was", error)  # noqa: TRY400 - the message says it all
            if self.gateway is not None:
                self.gateway.reload_refused(str(error), source)
            return
        self._refused = ""
        if self._accepted != before or even_if_same:
            self._apply(source)
            logs.configure(self._accepted.logging.level, self._accepted.logging.format, "gateway")

    async def _watch_file(self) -> None:
        """Reads the configuration again whenever `engines_file` is another file than before, or has other content.

        One that is away is no change. After a refusal it tries again now and then: the mistake may be in another file.
        """
        seen: tuple[str, object] = "", None
        looks = 0
        while True:
            await asyncio.sleep(WATCH_S)
            looks += 1
            name = self._accepted.engines_file
            if not name or self.gateway is None:
                continue
            stamp = await asyncio.to_thread(_stamp, name)
            if stamp is None or ((name, stamp) == seen and (not self._refused or looks % RETRY_LOOKS)):
                continue
            # The first look at a file only makes up for what has changed since it was read with the configuration.
            first, seen = name != seen[0], (name, stamp)
            self.read_again("file", even_if_same=not first)

    def _apply(self, source: str) -> None:
        if self.gateway is None:
            self._asked[source] = True
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
