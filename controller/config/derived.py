"""What follows from a configuration: file paths, addresses, the agents that run, and the settings of the scheduler and its instances."""

import ipaddress
from pathlib import Path

import msgspec

from hmas.controller.config.schema import AgentsConfig, Config, EngineConfig
from hmas.controller.config.section import GatewayConfig
from hmas.controller.core.allowed_sites import ANY, AllowedSites
from hmas.controller.core.errors import PolicyError
from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import DEFAULT_IMPORTANCE, TaskType
from hmas.controller.routing.registry import read_router, router_text
from hmas.controller.scheduling.policies.registry import named
from hmas.controller.scheduling.settings import InstanceSpec, SchedulerSettings
from hmas.engines.model_shape import model_kv_bytes

AGENT_NAMES = ("perception", "prediction", "qos", "meta", "statera")
"""The five agents, in the order in which a request's data passes through them."""
KV_BYTES_PER_TOKEN = 131_072
"""The value of Llama 3 8B in 16 bit, used if nothing is known. It only weighs instances against each other; capacities are unaffected."""
META_ROUTERS_MOST = 4
"""Most routers in `agents.meta_routers`."""
UNIX_PATH_LIMIT = 107
"""Most bytes of a unix socket's path on Linux (sun_path without its closing zero)."""
ADMIN_TOKEN_FILE = "admin-token"  # noqa: S105 - the name of a file
"""Name of the file under state_dir that holds the operators' token."""


def state_dir(config: Config) -> Path:
    """Folder of sockets, embedded data and, by default, overrides."""
    return Path(config.state_dir).expanduser()


def overrides_dir(config: Config) -> Path:
    """Folder that is polled for override files."""
    return Path(config.overrides_dir).expanduser() if config.overrides_dir else state_dir(config) / "overrides"


def models_dir(config: Config) -> Path:
    """Folder of trained models: all versions, and which of them is active."""
    return state_dir(config) / "models"


def bus_dir(config: Config) -> Path:
    """Folder of the embedded server: its socket `r.sock` and, if durable, its data."""
    return state_dir(config) / "bus"


def bus_url(config: Config) -> str:
    """Address of the configured Redis server, or of the one that `hmas up` starts itself."""
    return config.bus.url or f"unix://{bus_dir(config) / 'r.sock'}"


def admin_token_file(config: Config) -> Path:
    """File with the operators' token that the gateway makes where `gateway.admin_token_sha256` is empty."""
    return state_dir(config) / ADMIN_TOKEN_FILE


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. Names other than `localhost` count as reachable from outside."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def url_of(host: str, port: int) -> str:
    """`http://host:port` for a client on this machine; wildcard addresses become loopback."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - recognised here, not bound
    return f"http://[{reachable}]:{port}" if ":" in reachable and not reachable.startswith("[") else f"http://{reachable}:{port}"


def public_sites(gateway: GatewayConfig) -> AllowedSites:
    """The Hosts and Origins of the port for clients.

    Beyond loopback every request needs a key, which no page has: any Host is served there unless names are configured. For the same reason
    a request with a foreign Origin is refused only where none needs a key.
    """
    hosts = [gateway.host, *gateway.allowed_hosts] if gateway.allowed_hosts or is_loopback(gateway.host) else [ANY]
    return AllowedSites(hosts, gateway.allowed_origins, settings="gateway.", refuse_others=gateway.no_auth)


def admin_sites(gateway: GatewayConfig) -> AllowedSites:
    """The Hosts and Origins of the operators' API."""
    hosts = [gateway.admin_host, *gateway.admin_allowed_hosts]
    return AllowedSites(hosts, gateway.admin_allowed_origins, settings="gateway.admin_", refuse_others=True)


def running_agents(agents: AgentsConfig) -> tuple[str, ...]:
    """Names of the agents that run, in the order of `AGENT_NAMES`; empty if agents are disabled."""
    only = named(agents.only)
    return tuple(name for name in AGENT_NAMES if agents.enabled and (not only or name in only))


def scheduler_settings(config: Config) -> SchedulerSettings:
    """Every setting of the scheduler by its name, for both the gateway and meta's twin."""
    named = msgspec.convert(config.scheduler, SchedulerSettings, from_attributes=True)
    usual = slo_for(TaskType.UNKNOWN, DEFAULT_IMPORTANCE, config.slo.scale)
    return msgspec.structs.replace(named, headroom=config.slo.headroom, usual_tpot_ms=usual.tpot_ms)


def routers(config: Config) -> dict[str, str]:
    """The router of each model that has one of its own, and of all others under `*`, as `make_router` reads them."""
    section = config.scheduler
    found = {"*": router_text(section.routing, section.routing_weights)}
    for model, own in config.models.items():
        if own.routing or own.routing_weights:
            weights = own.routing_weights if own.routing else {**section.routing_weights, **own.routing_weights}
            found[model] = router_text(own.routing or section.routing, weights)
    return found


def meta_routers(agents: AgentsConfig, configured: str) -> tuple[str, ...]:
    """The routers that meta may choose besides the configured one, each once.

    Raises:
        PolicyError: There are too many, or `read_router` refuses one.
    """
    texts = tuple(dict.fromkeys(named(agents.meta_routers)))
    if len(texts) > META_ROUTERS_MOST:
        raise PolicyError(f"got {len(texts)} routers; allowed: {META_ROUTERS_MOST} at most, because each is replayed beside the policies")
    return tuple(text for text in texts if read_router(text) != read_router(configured))


def instance_spec(engine: EngineConfig) -> InstanceSpec:
    """The window and KV budget of one engine, for the scheduler.

    Raises:
        ProfileError: The model's config.json cannot be used; the message names the file and the field.
    """
    per_token = engine.kv_bytes_per_token
    if not per_token and engine.model_config:
        per_token = model_kv_bytes(engine.model_config, tp=engine.tp, dtype=engine.kv_cache_dtype)
    per_token = per_token or KV_BYTES_PER_TOKEN
    return InstanceSpec(
        name=engine.name,
        capacity_n_run=engine.n_run_max,
        kv_capacity_tokens=engine.kv_capacity_tokens or engine.kv_capacity_bytes // per_token,
        kv_bytes_per_token=per_token,
        fence_margin=engine.fence_margin,
        profile=engine.profile,
    )
