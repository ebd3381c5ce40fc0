"""The demo's processes: embedded engines for the whole demo, and a new gateway (with bus and agents) for each run."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import orjson

from hmas.controller.bus.embedded import EmbeddedServer
from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.core.errors import HmasError
from hmas.controller.runtime.child import ChildSpec
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.runtime.ports import free_ports
from hmas.controller.runtime.supervisor import ChildEvent, Supervisor
from hmas.demo.calibration import Variant
from hmas.demo.settings import DemoSettings
from hmas.engines.base import Engine, EngineSnapshot, Knobs
from hmas.engines.registry import connect_engine

ENGINE_STAGE, AGENT_STAGE, GATEWAY_STAGE = 1, 2, 3
READY_S = 60.0
IDLE_S = 10.0
FATAL = frozenset({"crashed", "hung", "given-up", "killed"})
MODEL = "demo"
EngineKind = Literal["sim", "vllm"]


class DemoBroken(HmasError):
    """A part of the demo has failed, so its result is not valid."""


@dataclass(slots=True)
class Site:
    """The locations of everything in this demo.

    Attributes:
        folder: Configurations, logs, plans and results of this demo.
        keys: API key of each tenant.
        engines: Address of each engine, by name; all are of one kind and serve one model.
        troubles: Every observed crash, as text.
    """

    folder: Path
    keys: dict[str, str]
    kind: EngineKind = "sim"
    model: str = MODEL
    engines: dict[str, str] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    in_trouble: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, event: ChildEvent) -> None:
        """Records fatal events of the processes."""
        if event.kind in FATAL:
            self.troubles.append(f"{event.child} {event.kind}: {event.detail} (log: {self.folder / (event.child + '.log')})")
            self.in_trouble.set()

    def command(self, name: str, *arguments: str, module: str = "hmas") -> list[str]:
        """A command line of `hmas`, or of another module, whose stderr goes to a log file of the demo."""
        log = str(self.folder / f"{name}.log")
        return ["/bin/sh", "-c", 'log="$0"; exec "$@" 2>>"$log"', log, sys.executable, "-m", module, *arguments]


@dataclass(frozen=True, slots=True)
class Cast:
    """The processes that take part in a run with agents.

    Attributes:
        agents: Names of the agents that are started.
        beside: Additional processes on the same bus by name: a module and its arguments, to which `--config FILE` is added.
    """

    agents: tuple[str, ...] = AGENT_NAMES
    beside: Mapping[str, Sequence[str]] = field(default_factory=dict)


EVERYBODY = Cast()


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """The addresses of one run's gateway; `bus_url` is empty without agents."""

    url: str
    admin_url: str
    bus_url: str = ""


def make_site(folder: Path, tenants: Sequence[str], *, kind: EngineKind = "sim", model: str = MODEL) -> Site:
    """Prepares the site without starting processes. Removes logs of an earlier demo in the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        log.unlink()
    return Site(folder, {tenant: secrets.token_urlsafe(16) for tenant in tenants}, kind, model)


@asynccontextmanager
async def running_engines(site: Site, settings: DemoSettings) -> AsyncIterator[Supervisor]:
    """Starts the embedded engines and stops them in the end.

    Raises:
        DemoBroken: An engine does not start.
    """
    specs = []
    for number, port in enumerate(free_ports(settings.engines), 1):
        name = f"engine-{number}"
        site.engines[name] = f"http://127.0.0.1:{port}"
        options = ["--profile", settings.profile, "--speed", f"{settings.speed:g}", "--port", str(port), "--name", name, "--model", MODEL]
        argv = site.command(name, "run", "engine", *options, "--log-level", "warning")
        specs.append(ChildSpec(name=name, argv=argv, stage=ENGINE_STAGE, notifies=True, grace_s=2.0))
    async with Supervisor(specs, on_event=site.note) as keeper:
        await _all_ready(keeper, site)
        yield keeper


@asynccontextmanager
async def running_gateway(site: Site, variant: Variant, *, cast: Cast | None, config: Mapping[str, Any]) -> AsyncIterator[GatewayAddress]:
    """Starts a gateway for one run: with bus and agents if there is a cast, else alone with a fixed policy and window.

    Raises:
        DemoBroken: A process does not start.
    """
    folder = site.folder / variant.name
    folder.mkdir(exist_ok=True)
    bus = EmbeddedServer(folder / "bus") if cast is not None else None
    try:
        bus_url = bus.start() if bus is not None else ""
        port, admin_port = free_ports(2)
        address = GatewayAddress(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", bus_url)
        path = folder / "hmas.yaml"
        # JSON is also YAML, so the configuration file can be reused unchanged.
        path.write_bytes(orjson.dumps(gateway_config(site, variant, address, folder, config), option=orjson.OPT_INDENT_2))
        specs = []
        if cast is not None:
            specs += [_child(site, name, ["run", "agent", name, "--config", str(path)], AGENT_STAGE) for name in cast.agents]
            for name, (module, *words) in cast.beside.items():
                specs.append(_child(site, name, [*words, "--config", str(path)], AGENT_STAGE, module=module))
        specs.append(_child(site, "gateway", ["run", "gateway", "--config", str(path)], GATEWAY_STAGE))
        async with Supervisor(specs, on_event=site.note) as keeper:
            await _all_ready(keeper, site)
            yield address
    finally:
        if bus is not None:
            bus.stop()


def gateway_config(site: Site, variant: Variant, address: GatewayAddress, folder: Path, more: Mapping[str, Any]) -> dict[str, Any]:
    """One run's configuration document."""
    # A baseline drops only requests whose deadline HAS passed and has no fence; prediction is what H-MAS adds.
    fixed = (
        {}
        if address.bus_url or variant.foresight
        else {"fence": False, "late_service_share": 0.0, "late_confidence": 0.0, "tpot_guard": 0.0}
    )
    document: dict[str, Any] = {
        "state_dir": str(folder),
        "gateway": {"port": _port(address.url), "admin_port": _port(address.admin_url), "drain_s": 2.0},
        "tenants": {tenant: {"key_sha256": [sha256(key.encode()).hexdigest()]} for tenant, key in site.keys.items()},
        "engines": [{"name": name, "url": url, "kind": site.kind} for name, url in site.engines.items()],
        "scheduler": {"policy": variant.policy, "n_run": variant.n_run, "overdue": variant.overdue, **fixed},
        "agents": {"enabled": bool(address.bus_url)},
        "bus": {"url": address.bus_url},
        "logging": {"level": "info"},
    }
    for section, values in more.items():
        document[section] = {**document.get(section, {}), **values}
    return document


async def reset_engines(site: Site) -> None:
    """Waits until every engine is idle and resets its knobs to their ceilings, so that no run affects the next.

    Raises:
        DemoBroken: An engine does not answer, refuses, or does not become idle.
    """
    for name, url in site.engines.items():
        engine = await connect_engine(name=name, url=url, kind=site.kind)
        try:
            state = await _idle(engine)
            report = await engine.apply_knobs(Knobs(n_run=state.max_num_seqs_ceiling, token_budget=state.max_num_batched_tokens_ceiling))
        finally:
            await engine.close()
        refused = set(report.refused) & set(engine.capabilities.live_knobs)
        if refused:
            raise DemoBroken(f"{name} refuses its own ceilings: {report.refused}")


async def _idle(engine: Engine) -> EngineSnapshot:
    """Returns the engine's state once it is idle: requests that the last run gave up may still be ending."""
    clock = SystemClock()
    until_s = clock.now_s() + IDLE_S
    while True:
        state = await engine.snapshot(clock.now_s())
        if state.healthy and not state.running and not state.waiting:
            return state
        if clock.now_s() > until_s:
            raise DemoBroken(
                f"{engine.name} is not idle {IDLE_S:g} s after a run: {state.running} running, {state.waiting} waiting {state.detail}"
            )
        await asyncio.sleep(0.1)


async def _all_ready(keeper: Supervisor, site: Site) -> None:
    """Waits until all processes are ready; gives up if one crashes."""
    ready = asyncio.create_task(keeper.wait_ready(timeout_s=READY_S))
    trouble = asyncio.create_task(site.in_trouble.wait())
    await asyncio.wait({ready, trouble}, return_when=asyncio.FIRST_COMPLETED)
    trouble.cancel()
    if not ready.done():
        ready.cancel()
        raise DemoBroken(site.troubles[-1])
    missing = ready.result()
    if missing:
        logs = ", ".join(str(site.folder / f"{name}.log") for name in missing)
        raise DemoBroken(f"not ready within {READY_S:g} s: {', '.join(missing)}; see {logs}")


def _child(site: Site, name: str, arguments: Sequence[str], stage: int, *, module: str = "hmas") -> ChildSpec:
    return ChildSpec(name=name, argv=site.command(name, *arguments, module=module), stage=stage, notifies=True, grace_s=5.0)


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])
