"""A gateway with two embedded engines, all in this process, for tests of the operators' commands."""

import asyncio
import hashlib
import threading

from hmas.cli.main import main
from hmas.controller.bus.no_bus import NoBus
from hmas.controller.config.schema import AgentsConfig, Config, EngineConfig
from hmas.controller.config.section import GatewayConfig, TenantConfig
from hmas.controller.gateway.process import serve
from hmas.controller.runtime.clock import SystemClock
from hmas.engines.sim.model import EngineModel
from hmas.engines.sim.profile import load_profile
from hmas.engines.sim.server import create_app, start

TOKEN = "hmas-test-token"


def commands(installation, capsys, monkeypatch):
    """For a fixture: runs commands against an installation, which holds nothing before and after."""
    monkeypatch.setenv("HMAS_ADMIN_URL", installation.admin)
    monkeypatch.setenv("HMAS_ADMIN_TOKEN", TOKEN)

    def run(*arguments):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    run("override", "clear", "--all")
    yield run
    run("override", "clear", "--all")


class Installation:
    """A gateway and its engines on a loop in a thread of its own."""

    def __init__(self, state_dir, tenants: dict[str, TenantConfig] | None = None):
        self.state_dir = state_dir
        self._tenants = tenants or {}
        self.url = self.admin = ""
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _run(self):
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self):
        engines, runners = [], []
        for name in ("gpu-0", "gpu-1"):
            runner, port = await start(create_app(EngineModel(load_profile("demo-small")), "m", name), port=0)
            runners.append(runner)
            engines.append(EngineConfig(name=name, url=f"http://127.0.0.1:{port}"))
        config = Config(
            state_dir=str(self.state_dir),
            gateway=GatewayConfig(
                port=0, admin_port=0, no_auth=True, drain_s=1, admin_token_sha256=hashlib.sha256(TOKEN.encode()).hexdigest()
            ),
            engines=engines,
            tenants=self._tenants,
            agents=AgentsConfig(enabled=False),
        )
        bus = NoBus()

        def on_ready(started):
            self.url, self.admin = started.url, started.admin_url
            self._started.set()

        try:
            await serve(config, bus=bus, clock=SystemClock(), on_ready=on_ready, stop=self._stop)
        finally:
            await bus.close()
            for runner in runners:
                await runner.cleanup()
