"""Engines that are found by name in DNS: what becomes an engine, what a failing server of names changes, and a running gateway."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from hmas.controller.config.loader import load_config
from hmas.controller.config.schema import Config, EngineConfig, EnginesDnsConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.gateway.instances import dns_discovery
from hmas.controller.gateway.instances.dns_discovery import FOUND_MOST, DnsDiscovery, DnsUnknown, addresses, instance_of, targets
from hmas.controller.runtime.clock import SystemClock


@dataclass
class Names:
    """A server of names whose answers a test sets."""

    answer: list[tuple[str, int]] | Exception = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)

    async def resolve(self, host: str, port: int) -> Iterable[tuple[str, int]]:
        self.asked.append((host, port))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def discovery(self, *entries: EnginesDnsConfig) -> DnsDiscovery:
        return DnsDiscovery(entries, lambda name, reason: self.told.append((name, reason)), {"A": self.resolve, "SRV": self.resolve})


def entry(url: str = "http://vllm.local:8000", **settings: Any) -> EnginesDnsConfig:
    return EnginesDnsConfig(**{"name": "vllm", "url": url, **settings})


def named(discovery: DnsDiscovery, *entries: EnginesDnsConfig) -> list[str]:
    return [engine.name for engine in discovery.with_found(Config(engines_dns=list(entries))).engines]


@pytest.mark.parametrize(
    ("place", "name", "url"),
    [
        (("10.0.0.7", 8000), "vllm-10.0.0.7-8000", "http://10.0.0.7:8000"),
        (("fd00::7", 8000), "vllm-fd00--7-8000", "http://[fd00::7]:8000"),
        (("fd00:1111:2222:3333:4444:5555:6666:7777", 65535), "vllm-fd00-1111-2222-3333-4444-5555-6666-7777-65535", None),
        (("pod-0.big.svc.", 9000), "vllm-pod-0.big.svc-9000", "http://pod-0.big.svc:9000"),
    ],
)
def test_each_place_is_an_engine_with_the_settings_of_its_entry(place, name, url):
    found = instance_of(entry(n_run_max=7, kind="vllm", profile="h100-llama-3-8b"), place)
    assert type(found) is EngineConfig
    assert (found.name, found.n_run_max, found.kind, found.profile) == (name, 7, "vllm", "h100-llama-3-8b")
    assert url is None or found.url == url
    assert len(instance_of(entry(name="n" * 16), ("h" * 253, 65535)).name) <= 64


async def test_hosts_whose_names_are_alike_once_shortened_are_engines_of_their_own():
    hosts = [f"vllm-llama-3-1-70b-instruct-prefill-worker-{number}.models.svc" for number in range(3)]
    names, one = Names([(host, 8000) for host in hosts]), entry(name="n" * 16)
    discovery = names.discovery(one)
    await discovery.refresh(0.0)
    found = named(discovery, one)
    assert len(set(found)) == 3
    assert all(len(name) <= 64 for name in found)


async def test_places_that_would_have_one_name_are_one_engine():
    names, one = Names([("pod~a", 8000), ("pod-a", 8000)]), entry()
    discovery = names.discovery(one)
    await discovery.refresh(0.0)
    assert named(discovery, one) == ["vllm-pod-a-8000"]


async def test_a_name_without_its_library_is_told_and_hides_no_other():
    names, srv, plain = Names([("10.0.0.1", 8000)]), entry(name="srv", record="SRV"), entry()

    async def missing(_host: str, _port: int) -> Iterable[tuple[str, int]]:
        raise ConfigError("SRV records need dnspython")

    discovery = DnsDiscovery([srv, plain], lambda name, reason: names.told.append((name, reason)), {"A": names.resolve, "SRV": missing})
    assert await discovery.refresh(0.0)
    assert named(discovery, srv, plain) == ["vllm-10.0.0.1-8000"]
    assert names.told == [("srv", "SRV records need dnspython")]
    with pytest.raises(ConfigError, match="dnspython"):
        await discovery.refresh(100.0, at_start=True)


async def test_names_are_asked_for_as_often_as_they_say():
    names, one = Names([("10.0.0.1", 8000)]), entry(every_s=10.0)
    discovery = names.discovery(one)
    assert await discovery.refresh(100.0)
    assert not await discovery.refresh(109.0)
    assert len(names.asked) == 1
    assert not await discovery.refresh(110.0), "the same answer is no change"
    assert names.asked == [("vllm.local", 8000)] * 2
    names.answer = [("10.0.0.2", 8000), ("10.0.0.1", 8000), ("10.0.0.2", 8000)]
    assert await discovery.refresh(120.0)
    assert named(discovery, one) == ["vllm-10.0.0.1-8000", "vllm-10.0.0.2-8000"]


async def test_an_engine_leaves_once_three_answers_in_a_row_were_without_it():
    names, one = Names([("10.0.0.1", 8000), ("10.0.0.2", 8000)]), entry(every_s=1.0)
    discovery = names.discovery(one)
    await discovery.refresh(0.0)
    both, some = names.answer, [("10.0.0.1", 8000)]
    for now_s, names.answer in enumerate([some, some, both, some, [], OSError("name server down"), some], start=1):
        assert not await discovery.refresh(now_s)
    assert named(discovery, one) == ["vllm-10.0.0.1-8000", "vllm-10.0.0.2-8000"]
    assert await discovery.refresh(8.0)
    assert named(discovery, one) == ["vllm-10.0.0.1-8000"]


@pytest.mark.parametrize(
    "answer", [[], OSError("name server down"), DnsUnknown("NXDOMAIN"), TimeoutError(), UnicodeError("label empty")], ids=repr
)
async def test_a_name_without_an_answer_keeps_its_engines_and_is_told_once(answer):
    names, one = Names([("10.0.0.1", 8000)]), entry(every_s=1.0)
    discovery = names.discovery(one)
    await discovery.refresh(0.0)
    names.answer = answer
    assert not await discovery.refresh(1.0)
    assert not await discovery.refresh(2.0)
    assert named(discovery, one) == ["vllm-10.0.0.1-8000"]
    assert len(names.told) == 1
    assert names.told[0][0] == "vllm"
    assert "the 1 instances known so far stay" in names.told[0][1]
    names.answer = [("10.0.0.1", 8000)]
    assert not await discovery.refresh(3.0)
    assert names.told[1:] == [("vllm", "")]


async def test_a_slow_server_of_names_holds_nobody_up(monkeypatch: pytest.MonkeyPatch):
    async def never(_host: str, _port: int) -> Iterable[tuple[str, int]]:
        await asyncio.Event().wait()
        return ()

    monkeypatch.setattr(dns_discovery, "ANSWER_S", 0.01)
    told: list[tuple[str, str]] = []
    discovery = DnsDiscovery([entry()], lambda *what: told.append(what), {"A": never})
    assert not await discovery.refresh(0.0)
    assert told == [("vllm", "no answer")]


async def test_what_is_found_stands_behind_the_configured_engines_and_never_twice():
    names = Names([("10.0.0.1", 8000), ("10.0.0.2", 8000)])
    one, other = entry(), entry(name="again")
    discovery = names.discovery(one, other)
    await discovery.refresh(0.0)
    config = Config(engines=[EngineConfig(name="own", url="http://10.0.0.1:8000")], engines_dns=[one, other])
    assert [engine.url for engine in discovery.with_found(config).engines] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]


async def test_a_flood_of_addresses_is_bounded():
    names, one = Names([(f"10.{place >> 8}.{place & 255}.1", 8000) for place in range(2 * FOUND_MOST)]), entry()
    discovery = names.discovery(one)
    await discovery.refresh(0.0)
    assert len(named(discovery, one)) == FOUND_MOST
    names.answer = [("99.0.0.9", 8000)]
    await discovery.refresh(100.0)
    found = named(discovery, one)
    assert len(found) == FOUND_MOST
    assert "vllm-99.0.0.9-8000" in found, "what is named now comes before what is missing"


async def test_entries_come_and_go_with_the_configuration():
    names, first, second = Names([("10.0.0.1", 8000)]), entry(), entry(name="new", url="http://other.local:9000")
    discovery = names.discovery(first)
    await discovery.refresh(0.0)
    assert named(discovery, second) == []
    assert await discovery.refresh(1.0)
    assert names.asked[-1] == ("other.local", 9000)
    assert named(discovery, second) == ["new-10.0.0.1-8000"]


async def test_a_changed_url_is_asked_at_once_and_its_answer_replaces_the_old_addresses():
    names, old = Names([("10.0.0.1", 8000)]), entry(every_s=600.0)
    new = entry("http://other.local:8000", every_s=600.0)
    discovery = names.discovery(old)
    await discovery.refresh(0.0)
    names.answer = OSError("name server down")
    assert named(discovery, new) == ["vllm-10.0.0.1-8000"], "nothing else is known yet"
    assert not await discovery.refresh(1.0)
    assert names.told == [("vllm", "name server down; the 1 instances known so far stay")]
    names.answer = [("10.0.0.2", 8000)]
    assert not await discovery.refresh(2.0), "it is asked once, and then as often as the entry says"
    assert await discovery.refresh(601.0)
    assert named(discovery, new) == ["vllm-10.0.0.2-8000"]
    assert names.asked == [("vllm.local", 8000), ("other.local", 8000), ("other.local", 8000)]


async def test_a_running_discovery_does_not_wait_for_its_next_look(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_discovery, "LOOK_S", 600.0)
    names, old, new = Names([("10.0.0.1", 8000)]), entry(), entry("http://other.local:8000")
    discovery, changed = names.discovery(old), asyncio.Event()
    await discovery.refresh(0.0)
    running = asyncio.create_task(discovery.run(SystemClock(), changed.set))
    names.answer = [("10.0.0.2", 8000)]
    discovery.with_found(Config(engines_dns=[new]))
    await asyncio.wait_for(changed.wait(), 5.0)
    assert named(discovery, new) == ["vllm-10.0.0.2-8000"]
    running.cancel()


async def test_a_late_answer_to_what_is_no_longer_asked_counts_for_nothing():
    asked, answered = asyncio.Event(), asyncio.Event()

    async def slow(host: str, port: int) -> Iterable[tuple[str, int]]:
        if host == "vllm.local":
            asked.set()
            await answered.wait()
            return [("10.0.0.1", port)]
        return [("10.0.0.2", port)]

    old, new = entry(), entry("http://other.local:8000")
    discovery = DnsDiscovery([old], lambda *_: None, {"A": slow})
    refreshing = asyncio.create_task(discovery.refresh(0.0))
    await asked.wait()
    assert named(discovery, new) == []
    answered.set()
    assert not await refreshing
    assert named(discovery, new) == []
    assert await discovery.refresh(0.0)
    assert named(discovery, new) == ["vllm-10.0.0.2-8000"]


async def test_another_interval_counts_from_the_last_question_and_an_entry_that_was_gone_begins_anew():
    names, one = Names([("10.0.0.1", 8000)]), entry(every_s=3600.0)
    discovery = names.discovery(one)
    await discovery.refresh(0.0)
    named(discovery, entry(every_s=5.0))
    await discovery.refresh(4.0)
    assert len(names.asked) == 1
    await discovery.refresh(5.0)
    assert len(names.asked) == 2
    assert named(discovery) == []
    assert named(discovery, one) == []
    assert await discovery.refresh(6.0)
    assert named(discovery, one) == ["vllm-10.0.0.1-8000"]


async def test_the_system_resolves_addresses():
    assert ("127.0.0.1", 8000) in await addresses("localhost", 8000)
    with pytest.raises(OSError, match=r"not known|No address|temporary"):
        await addresses("no-such-name.invalid", 80)


class SrvServer(asyncio.DatagramProtocol):
    """A server of names with the SRV records of one name."""

    def __init__(self) -> None:
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:

        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        name = query.question[0].name
        if name.to_text() == "_vllm._tcp.big.test.":
            records = ("10 5 8000 pod-0.big.test.", "10 5 8001 pod-1.big.test.", "20 5 8000 spare.big.test.")
            answer.answer.append(dns.rrset.from_text(name, 1, "IN", "SRV", *records))
        elif name.to_text() == "_vllm._tcp.none.test.":
            answer.answer.append(dns.rrset.from_text(name, 1, "IN", "SRV", "0 0 0 ."))
        else:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        assert self.transport is not None
        self.transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def server_of_names(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Lets dnspython ask a server on this machine."""

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(SrvServer, local_addr=("127.0.0.1", 0))
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], transport.get_extra_info("sockname")[1]
    monkeypatch.setattr(dns.asyncresolver, "default_resolver", resolver)
    try:
        yield
    finally:
        transport.close()


async def test_srv_records_name_hosts_and_ports_and_the_best_priority_counts(monkeypatch: pytest.MonkeyPatch):
    async with server_of_names(monkeypatch):
        assert sorted(await targets("_vllm._tcp.big.test", 0)) == [("pod-0.big.test", 8000), ("pod-1.big.test", 8001)]
        assert await targets("_vllm._tcp.none.test", 0) == [], "the root says that there is no such service"
        with pytest.raises(DnsUnknown, match="does not exist"):
            await targets("_vllm._tcp.other.test", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{name: a, url: 'http://h:1'}, {name: a, url: 'http://i:1'}]", "engines_dns[1].name: got 'a', which engines_dns[0] has too"),
        ("[{name: a-much-too-long-name, url: 'http://h:1'}]", "engines_dns[0].name: got 20 characters"),
        ("[{name: a, url: 'https://h:1'}]", "engines_dns[0].url: got 'https://h:1', whose certificate names a host and no address"),
        ("[{name: a, url: 'http://h', record: MX}]", "engines_dns[0].record"),
        ("[{name: a, url: 'http://h', kind: magic}]", "engines_dns[0].kind: got 'magic'"),
        ("[{name: a, url: 'http://h', n_run_max: 0}]", "engines_dns[0].n_run_max"),
        ("[{name: a, url: 'http://h', kv_capacity_bytes: 5}]", "engines_dns[0].kv_capacity_bytes"),
        ("[{name: a, url: 'http://h', kv_events: {endpoint: 'tcp://h:1'}}]", "engines_dns[0].kv_events: got an endpoint"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str):
    file = tmp_path / "hmas.yaml"
    file.write_text(f"engines_dns: {text}\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(str(file), {})
