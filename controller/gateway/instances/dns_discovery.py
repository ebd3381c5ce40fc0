"""Engines that are found by name in DNS: each address of a name, or each target of its SRV records, is an instance."""

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from urllib.parse import urlsplit

import msgspec

from hmas.controller.config.schema import Config, EngineConfig, EnginesDnsConfig
from hmas.controller.core.errors import ConfigError, HmasError
from hmas.controller.runtime.clock import Clock

LOOK_S = 1.0
"""How often it is looked which names are due."""
FOUND_MOST = 1000
"""Most instances of one name: those first in order."""
GONE_AFTER = 3
"""After so many answers in a row without an instance it is gone: a server of names may answer with some of the addresses only."""
ANSWER_S = 5.0
"""How long an answer is waited for."""
NAME_MOST = 64
"""Most characters of an instance's name."""
log = logging.getLogger(__name__)
Place = tuple[str, int]
"""Host or address, and port."""
Resolve = Callable[[str, int], Awaitable[Iterable[Place]]]
Told = Callable[[str, str], None]
"""Takes the name of an entry of `engines_dns`, and what is wrong with it, empty once it is well again."""
ENTRY_FIELDS = frozenset(EnginesDnsConfig.__struct_fields__) - frozenset(EngineConfig.__struct_fields__)


class DnsUnknown(HmasError):
    """A name has no records, or no server answers."""


class DnsDiscovery:
    """Knows the instances that DNS named in one of the last `GONE_AFTER` answers.

    An empty answer is none: a server of names that fails is no reason to stop serving.

    Args:
        entries: What is looked for.
        told: Called when a name gets no answer any more, and when it does again.
        resolve: By kind of record, who asks; the system's and dnspython's resolvers by default.
    """

    def __init__(self, entries: Sequence[EnginesDnsConfig], told: Told, resolve: dict[str, Resolve] | None = None) -> None:
        self._entries = entries
        self._told = told
        self._resolve = resolve or {"A": addresses, "SRV": targets}
        # By name and instance, how many answers in a row were without it.
        self._found: dict[str, dict[Place, int]] = {}
        self._asked_s: dict[str, float] = {}
        self._failing: set[str] = set()
        self._changed = asyncio.Event()

    async def refresh(self, now_s: float, *, at_start: bool = False) -> bool:
        """Asks for every name that is due, all at once. Returns whether an instance has come or gone.

        Raises:
            ConfigError: A library is missing. This is an error at the start only; later it is told as a name without an answer is.
        """
        due = [entry for entry in self._entries if now_s - self._asked_s.get(entry.name, float("-inf")) >= entry.every_s]
        return any(await asyncio.gather(*(self._ask(entry, now_s, at_start=at_start) for entry in due)))

    def with_found(self, config: Config) -> Config:
        """The configuration with the instances that were found behind its engines. What has a name or address of one before it is left out.

        From now on the entries of this configuration are looked for: at once those that are new or have another url or record, which keep
        what was found for them until that is answered.
        """
        before = {entry.name: _question(entry) for entry in self._entries}
        self._entries = config.engines_dns
        for entry in self._entries:
            if before.pop(entry.name, None) != _question(entry):
                self._asked_s.pop(entry.name, None)
                self._failing.discard(entry.name)
                # The first answer to another question replaces what was found.
                self._found[entry.name] = dict.fromkeys(self._found.get(entry.name, ()), GONE_AFTER)
                self._changed.set()
        for name in before:
            self._asked_s.pop(name, None)
            self._found.pop(name, None)
            self._failing.discard(name)
        engines = list(config.engines)
        taken = {engine.name for engine in engines} | {engine.url for engine in engines}
        for entry in config.engines_dns:
            for place in self._found.get(entry.name, ()):
                engine = instance_of(entry, place)
                if not taken & {engine.name, engine.url}:
                    taken |= {engine.name, engine.url}
                    engines.append(engine)
        return msgspec.structs.replace(config, engines=engines)

    async def run(self, clock: Clock, on_change: Callable[[], None]) -> None:
        """Asks as often as the entries say, and calls `on_change` when an instance has come or gone."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                if await self.refresh(clock.now_s()):
                    on_change()
            except Exception:
                log.exception("looking for engines by DNS failed; they stay as they are")

    async def _ask(self, entry: EnginesDnsConfig, now_s: float, *, at_start: bool) -> bool:
        self._asked_s[entry.name] = now_s
        url = urlsplit(entry.url)
        found: list[Place] = []
        fault = ""
        try:
            async with asyncio.timeout(ANSWER_S):
                asked = await self._resolve[entry.record](url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
            found = sorted(set(asked))[:FOUND_MOST]
            if not found:
                raise DnsUnknown(f"{url.hostname} has no {entry.record} records")
        except (ConfigError, DnsUnknown, OSError, TimeoutError, UnicodeError) as error:
            # A name with an empty or a long label cannot be encoded.
            if at_start and isinstance(error, ConfigError):
                raise
            fault = str(error) or "no answer"
        if _question(entry) not in map(_question, self._entries):
            # The entry was changed or removed while this was asked.
            return False
        if fault:
            if entry.name not in self._failing:
                self._failing.add(entry.name)
                kept = len(self._found.get(entry.name, ()))
                self._told(entry.name, fault + (f"; the {kept} instances known so far stay" if kept else ""))
            return False
        if entry.name in self._failing:
            self._failing.discard(entry.name)
            self._told(entry.name, "")
        before, there = self._found.get(entry.name, {}), set(found)
        missed = {place: count + 1 for place, count in before.items() if place not in there and count + 1 < GONE_AFTER}
        places = sorted([*found, *missed][:FOUND_MOST])
        self._found[entry.name] = {place: missed.get(place, 0) for place in places}
        return places != sorted(before)


def _question(entry: EnginesDnsConfig) -> tuple[str, str, str]:
    return entry.name, entry.url, entry.record


def instance_of(entry: EnginesDnsConfig, place: Place) -> EngineConfig:
    """The engine at a place, with the settings of its entry. It is called after both, such as `vllm-10.0.0.7-8000`."""
    host, port = place
    settings = {field: getattr(entry, field) for field in EnginesDnsConfig.__struct_fields__ if field not in ENTRY_FIELDS}
    shown = re.sub(r"[^A-Za-z0-9._-]", "-", host.rstrip("."))
    # The port tells two engines of one host apart, and a hash two hosts whose names are alike once they are shortened.
    room = max(0, NAME_MOST - len(entry.name) - len(str(port)) - 2)
    if len(shown) > room:
        shown = f"{shown[: max(0, room - 7)].rstrip('-.')}-{hashlib.blake2b(host.encode(), digest_size=3).hexdigest()}"
    settings["name"] = f"{entry.name}-{shown}-{port}"[-NAME_MOST:]
    scheme = urlsplit(entry.url).scheme
    settings["url"] = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host.rstrip('.')}:{port}"
    return EngineConfig(**settings)


async def addresses(host: str, port: int) -> list[Place]:
    """The addresses of a host (A and AAAA), as the system resolves it.

    Raises:
        OSError: There are none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(str(ipaddress.ip_address(str(address[0]).partition("%")[0])), port) for *_, address in found]


async def targets(name: str, _port: int) -> list[Place]:
    """The targets of a name's SRV records with the best priority.

    Raises:
        ConfigError: dnspython is not installed.
        DnsUnknown: There are none.
    """
    try:
        import dns.asyncresolver  # noqa: PLC0415 - its library is an extra
        import dns.exception  # noqa: PLC0415 - likewise
        import dns.name  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise ConfigError("engines_dns: SRV records need dnspython: pip install 'h-mas[dns]'") from error
    try:
        answer = await dns.asyncresolver.resolve(name, "SRV", lifetime=ANSWER_S)
    except dns.exception.DNSException as error:
        raise DnsUnknown(str(error)) from error
    # The root as a target says that there is no such service (RFC 2782).
    records = [record for record in answer if record.target != dns.name.root]
    best = min((record.priority for record in records), default=0)
    return [(record.target.to_text(omit_final_dot=True), record.port) for record in records if record.priority == best]
