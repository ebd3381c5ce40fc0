"""`hmas up`: starts everything on this machine and keeps it running until SIGTERM or Ctrl-C."""

import asyncio
import logging
import shlex
from typing import Any

import click

from hmas.cli.admin import config_option
from hmas.cli.output import example, hint, json_option, say, say_json
from hmas.cli.stack import Choices, Stack, plan
from hmas.cli.targets import ALLOWED, parse_targets
from hmas.cli.upkeep import BusInUse, Upkeep
from hmas.controller.admin.client import AdminClient
from hmas.controller.config.derived import AGENT_NAMES
from hmas.controller.config.loader import advice
from hmas.controller.core.errors import AdminError
from hmas.controller.runtime import logs
from hmas.controller.runtime.ports import bind_error
from hmas.engines.sim.profile import load_profile

ENGINE_HELP = f"An engine, in place of the configured ones: {ALLOWED}. May be repeated."
log = logging.getLogger(__name__)


@click.command(
    epilog=example(
        "hmas up --engine sim --no-auth",
        "hmas up --engine sim:demo-small@2 --engine sim --no-auth --port 9000",
        "hmas up --engine vllm=http://127.0.0.1:8000 --no-auth",
        "hmas up --engine sim --no-auth --agents perception,prediction",
        "hmas up --config hmas.yaml",
    )
)
@click.option("--engine", "engine", multiple=True, metavar="WHAT", help=ENGINE_HELP)
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the gateway; 0 for a free one.")
@click.option("--admin-port", type=click.IntRange(0, 65535), help="Port of the operators' API; 0 for a free one.")
@click.option("--no-auth", is_flag=True, help="Serve without API keys; loopback addresses only.")
@click.option("--no-agents", is_flag=True, help="Static control: gateway and engines without the five agents.")
@click.option("--agents", default="", metavar="NAMES", help=f"Only these agents, with commas between: {', '.join(AGENT_NAMES)}.")
@json_option
@config_option
@click.pass_context
def up(
    ctx: click.Context,
    *,
    engine: tuple[str, ...],
    port: int | None,
    admin_port: int | None,
    no_auth: bool,
    no_agents: bool,
    agents: str,
    as_json: bool,
    config_file: str | None,
) -> None:
    """Start bus, embedded engines, agents and gateway, and keep them running.

    Crashed processes are started again; SIGTERM or Ctrl-C drains and stops everything, a second one stops at once.
    Exit code 0 after a clean stop, 1 if the gateway could not be kept running.
    """
    if agents and no_agents:
        raise click.UsageError("--agents and --no-agents contradict each other; give one of them")
    targets = parse_targets(engine)
    for target in targets:
        if target.profile:
            load_profile(target.profile)
    stack = plan(Choices(config_file, targets, port, admin_port, no_auth, no_agents, agents))
    config = stack.config
    if not config.engines:
        raise click.UsageError("no engine: name one with --engine (such as --engine sim) or in the configuration")
    _require_ports(stack)
    for word in advice(config, stack.env):
        hint(f"note: {word}")
    logs.configure(config.logging.level, config.logging.format, "up")

    async def announce(bus: BusInUse) -> None:
        document = await _describe(stack, bus)
        if as_json:
            say_json(document)
        else:
            say(_banner(document))

    ctx.exit(asyncio.run(Upkeep(stack, announce).run()))


def _require_ports(stack: Stack) -> None:
    gateway = stack.config.gateway
    for host, port in ((gateway.host, gateway.port), (gateway.admin_host, gateway.admin_port)):
        taken = bind_error(host, port)
        if taken:
            advice_text = "is another `hmas up` running? --port and --admin-port choose others, 0 a free one"
            raise click.ClickException(f"cannot listen on {host} port {port}: {taken}; {advice_text}")


async def _describe(stack: Stack, bus: BusInUse) -> dict[str, Any]:
    engines: list[dict[str, Any]] = []
    try:
        engines = await asyncio.to_thread(AdminClient(stack.admin_url).engines)
    except AdminError as error:
        # If the operators' API needs a token, it refuses this call; the engines' state is optional here.
        log.debug("cannot ask the gateway for its engines: %s", error)
    return {
        "gateway": stack.gateway_url,
        "admin": stack.admin_url,
        "bus": bus.words,
        "engines": [{key: item[key] for key in ("name", "url", "kind", "healthy", "models")} for item in engines],
        "agents": [spec.name for spec in stack.control_specs("") if spec.name != "gateway"],
        "auth": not stack.config.gateway.no_auth,
    }


def _banner(document: dict[str, Any]) -> str:
    engines = [
        f"{item['name']} at {item['url']} ({item['kind']}{'' if item['healthy'] else ', does not answer yet'})"
        for item in document["engines"]
    ]
    model = next((model for item in document["engines"] for model in item["models"]), "MODEL")
    body = f'{{"model": "{model}", "stream": true, "max_tokens": 32, "messages": [{{"role": "user", "content": "Hello"}}]}}'
    key = '  -H "authorization: Bearer $HMAS_API_KEY" \\\n' if document["auth"] else ""
    admin = f" --admin {document['admin']}" if not document["admin"].endswith("127.0.0.1:8081") else ""
    return (
        f"H-MAS is up.\n"
        f"  gateway  {document['gateway']}/v1\n"
        f"  admin    {document['admin']}\n"
        f"  bus      {document['bus']}\n"
        f"  engines  {', '.join(engines)}\n"
        f"  agents   {', '.join(document['agents']) or 'switched off'}\n"
        f"Try it:\n"
        f"  curl -N {document['gateway']}/v1/chat/completions -H 'content-type: application/json' \\\n{key}"
        f"    -d {shlex.quote(body)}\n"
        f"  hmas status{admin}\n"
        f"Ctrl-C stops it."
    )
