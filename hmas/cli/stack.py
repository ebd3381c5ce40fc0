"""The processes that `hmas up` starts, their order, and the environment that combines configuration file and command line."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from socket import socket

import msgspec

from hmas.cli.admin import read_config
from hmas.cli.targets import Target
from hmas.controller.config.derived import running_agents, url_of
from hmas.controller.config.schema import Config
from hmas.controller.runtime.child import ChildSpec
from hmas.controller.runtime.ports import free_ports
from hmas.controller.runtime.signals import CHANGED

GATEWAY = "gateway"
"""Name of the gateway's process."""
ENGINE_STAGE, AGENT_STAGE, GATEWAY_STAGE = 1, 2, 3
"""Stop order, highest first: the gateway drains while agents and engines still run."""
WATCHDOG_S = 60.0
"""How long a gateway or an engine may be silent before it is killed: with it, its requests end. `AGENT_WATCHDOG_S`: likewise an agent, from
which the gateway falls back, so that it may be killed sooner."""
AGENT_WATCHDOG_S = 8.0
UNUSABLE = frozenset({2})
"""Exit code of a process whose configuration cannot be used."""
SLACK_S = 8.0
"""How long the gateway may take to end after its drain."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Settings from the command line, which replace those of the configuration; None and empty leave the configuration unchanged.

    Attributes:
        targets: Engines in place of the configured ones.
        port, admin_port: 0 chooses free ports.
        agents: Agents that run, separated by commas, in place of the configured ones.
        preset: The preset of defaults in place of the configured one.
    """

    config_file: str | None = None
    targets: Sequence[Target] = ()
    port: int | None = None
    admin_port: int | None = None
    no_auth: bool = False
    no_agents: bool = False
    agents: str = ""
    preset: str = ""


@dataclass(frozen=True, slots=True)
class Stack:
    """The processes to run, complete except for the bus address.

    Attributes:
        config: The configuration that every child reads.
        env: Variables for the children, so that they read exactly this configuration.
    """

    config: Config
    choices: Choices
    env: dict[str, str] = field(default_factory=dict)

    @property
    def gateway_url(self) -> str:
        """The gateway's address for clients."""
        return url_of(self.config.gateway.host, self.config.gateway.port)

    @property
    def admin_url(self) -> str:
        """The address of the operators' API."""
        return url_of(self.config.gateway.admin_host, self.config.gateway.admin_port)

    def engine_specs(self) -> list[ChildSpec]:
        """The embedded engines."""
        return [self._engine(target) for target in self.choices.targets if target.profile]

    def control_specs(self, bus_url: str, sockets: Sequence[socket] = ()) -> list[ChildSpec]:
        """The agents and the gateway on this bus; the gateway gets the sockets."""
        env = {**self.env, "HMAS_BUS__URL": bus_url}
        return [*(self._agent(name, env) for name in running_agents(self.config.agents)), self._gateway(env, sockets)]

    def _engine(self, target: Target) -> ChildSpec:
        port = target.config.url.rsplit(":", 1)[1]
        options = ["--profile", target.profile, "--speed", f"{target.speed:g}", "--port", port, "--name", target.config.name]
        level = ["--log-level", self.config.logging.level]
        return ChildSpec(
            name=target.config.name, argv=_hmas("run", "engine", *options, *level), stage=ENGINE_STAGE, notifies=True, watchdog_s=WATCHDOG_S
        )

    def _agent(self, name: str, env: Mapping[str, str]) -> ChildSpec:
        argv = _hmas("run", "agent", name, *self._config_option())
        return ChildSpec(
            name=name,
            argv=argv,
            env=env,
            stage=AGENT_STAGE,
            notifies=True,
            watchdog_s=AGENT_WATCHDOG_S,
            final_codes=UNUSABLE,
            again_codes=frozenset({CHANGED}),
        )

    def _gateway(self, env: Mapping[str, str], sockets: Sequence[socket]) -> ChildSpec:
        return ChildSpec(
            name=GATEWAY,
            argv=_hmas("run", "gateway", *self._config_option()),
            env=env,
            stage=GATEWAY_STAGE,
            grace_s=self.config.gateway.drain_s + SLACK_S,
            essential=True,
            notifies=True,
            watchdog_s=WATCHDOG_S,
            sockets=sockets,
            final_codes=UNUSABLE,
        )

    def _config_option(self) -> list[str]:
        return ["--config", self.choices.config_file] if self.choices.config_file else []


def plan(choices: Choices) -> Stack:
    """Reads the configuration and applies the command line to it.

    The children get the command line's settings as the usual HMAS_* variables.

    Raises:
        ConfigError: The configuration has mistakes, or contradicts the command line.
    """
    env: dict[str, str] = {}
    if choices.targets:
        env["HMAS_ENGINES_FILE"] = ""
        env["HMAS_ENGINES_DNS"] = "[]"
        env["HMAS_ENGINES"] = json.dumps([msgspec.to_builtins(target.config) for target in choices.targets])
    if choices.no_auth:
        env["HMAS_GATEWAY__NO_AUTH"] = "true"
    if choices.no_agents:
        env["HMAS_AGENTS__ENABLED"] = "false"
    if choices.preset:
        env["HMAS_PRESET"] = choices.preset
    if choices.agents:
        env["HMAS_AGENTS__ONLY"] = choices.agents
    if choices.port is not None:
        env["HMAS_GATEWAY__PORT"] = str(choices.port)
    if choices.admin_port is not None:
        env["HMAS_GATEWAY__ADMIN_PORT"] = str(choices.admin_port)
    config = read_config(choices.config_file, env)
    # A free port is chosen here once: children restart on the same ports, and the address is printed before they run.
    ports = (("HMAS_GATEWAY__PORT", config.gateway.port), ("HMAS_GATEWAY__ADMIN_PORT", config.gateway.admin_port))
    for (name, port), free in zip(ports, free_ports(2), strict=True):
        if port == 0:
            env[name] = str(free)
    return Stack(read_config(choices.config_file, env), choices, env)


def _hmas(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hmas", *arguments]
