"""Finds contradictions between settings that are each valid on their own."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hmas.controller.config.check import Path as ConfigPath
from hmas.controller.config.check import Problem
from hmas.controller.config.derived import AGENT_NAMES, UNIX_PATH_LIMIT, is_loopback, meta_routers, routers
from hmas.controller.config.mqtt import mqtt_advice, mqtt_problems
from hmas.controller.config.plugins import (
    BUDGET_LAW_GROUP,
    ENGINE_PLUGINS,
    POLICY_PLUGINS,
    ROUTER_PLUGINS,
    SELECTOR_GROUP,
    declared,
    unknown,
)
from hmas.controller.config.schema import Config, EngineConfig
from hmas.controller.config.section import KvEventsConfig
from hmas.controller.core.errors import PolicyError
from hmas.controller.routing.registry import DEFAULT_ROUTER, ROUTERS, read_router
from hmas.controller.scheduling.policies.registry import POLICIES, check_parameters, named
from hmas.engines.errors import ProfileError
from hmas.engines.model_shape import model_kv_bytes
from hmas.engines.registry import ADAPTERS, AUTO

BUS_SCHEMES = ("redis://", "rediss://", "unix://")
DNS_NAME_MOST = 16
"""Most characters of a name in `engines_dns`: the longest address and a port stand behind it in the names of the instances."""
META_SELECTORS, BUDGET_LAWS = ("twin", "rules", "llm", "paper-rules"), ("band", "memory")
"""Names of the built-in selectors of meta and budget laws of statera: agents hold those registries, and nothing here imports agents."""
LEAVE_ROUTER = META_SELECTORS[1:]
"""The built-in selectors that leave the router as it is."""


def cross_problems(config: Config) -> Iterator[Problem]:
    """Every contradiction, each at the path where it is best corrected."""
    yield from doors(config)
    yield from _engines(config)
    yield from _engines_dns(config)
    yield from _ports(config)
    yield from _tenants(config)
    yield from _routers(config)
    yield from _bus(config)
    yield from _agents(config)
    yield from mqtt_problems(config.mqtt)


def unknown_names(data: Any) -> Iterator[Problem]:
    """Mistakes where the document names something that is neither built in nor declared by a plugin.

    They are checked on the raw document, next to the checks of types, so that they are reported together with other mistakes. Selectors
    and budget laws are loaded only in their agents: here their names count.
    """
    lists = {setting: _at(data, (setting,)) for setting in ("engines", "engines_dns")}
    engines = [(setting, place) for setting, found in lists.items() if isinstance(found, list) for place in range(len(found))]
    models = _at(data, ("models",))
    registries: list[tuple[ConfigPath, str, Iterable[str]]] = [
        (("scheduler", "policy"), POLICY_PLUGINS.group, POLICIES),
        (("scheduler", "routing"), ROUTER_PLUGINS.group, ROUTERS),
        (("agents", "meta_selector"), SELECTOR_GROUP, (*META_SELECTORS, *declared(SELECTOR_GROUP))),
        (("agents", "statera_budget_law"), BUDGET_LAW_GROUP, (*BUDGET_LAWS, *declared(BUDGET_LAW_GROUP))),
        *((("models", model, "routing"), ROUTER_PLUGINS.group, ("", *ROUTERS)) for model in (models if isinstance(models, dict) else ())),
        *(((setting, place, "kind"), ENGINE_PLUGINS.group, (AUTO, *ADAPTERS)) for setting, place in engines),
    ]
    for path, group, names in registries:
        name = _at(data, path)
        if isinstance(name, str) and name not in names:
            yield Problem(path, f"got {name!r} (a text); {unknown(name, group, names)}")


def _at(data: Any, path: ConfigPath) -> Any:
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part]
        else:
            return None
    return data


def advice(config: Config, env: Mapping[str, str]) -> list[str]:
    """Settings that are allowed but probably not intended; one sentence each."""
    found = []
    if not (config.engines or config.engines_dns):
        found.append("engines: none is configured; the gateway answers 503 until `hmas up --engine ...` or the file names one")
    if not config.gateway.no_auth and not any(tenant.key_sha256 for tenant in config.tenants.values()):
        found.append(
            "tenants: no tenant has a key, so every request gets 401; make one with `hmas key new`, or set gateway.no_auth on loopback"
        )
    if config.gateway.no_auth and config.tenants:
        found.append("gateway.no_auth: every request is served without a key, the tenants' keys are not asked for")
    if config.gateway.no_auth and "*" in config.gateway.allowed_origins:
        found.append("gateway.allowed_origins: any web page that is open on this machine may use the engines; no key is asked for")
    named = [(f"engines[{place}]", engine) for place, engine in enumerate(config.engines)]
    named += [(f"engines_dns[{place}]", entry) for place, entry in enumerate(config.engines_dns)]
    for where, engine in named:
        for setting, variable in (("api_key_env", engine.api_key_env), ("control_token_env", engine.control_token_env)):
            if variable and variable not in env:
                found.append(f"{where}.{setting}: the environment has no {variable}; the gateway does not start without it")
    if any(engine.kv_events for engine in config.engines) and not any(
        "prefix" in read_router(text)[1] for text in routers(config).values()
    ):
        found.append("engines[].kv_events: no router has the scorer prefix, which alone reads them")
    if config.agents.meta_routers:
        found += _routers_without_effect(config)
    for setting in ("perception_endpoint_key_env", "meta_llm_key_env"):
        variable = getattr(config.agents, setting)
        if variable and variable not in env:
            found.append(f"agents.{setting}: the environment has no {variable}; the server is asked without a key")
    return [*found, *mqtt_advice(config.mqtt, env)]


def _routers_without_effect(config: Config) -> Iterator[str]:
    selector = config.agents.meta_selector
    if selector in LEAVE_ROUTER:
        yield f"agents.meta_routers: no effect, because the selector {selector!r} leaves the router as it is"
    if len(config.engines) == 1 and not (config.engines_dns or config.engines_file):
        yield "agents.meta_routers: no effect while there is one engine"


def doors(config: Config) -> Iterator[Problem]:
    """Contradictions of addresses and keys, with which no gateway must serve."""
    gateway = config.gateway
    if gateway.no_auth and not is_loopback(gateway.host):
        yield Problem(
            ("gateway", "no_auth"),
            f"got true with host {gateway.host!r}; allowed only on a loopback address such as 127.0.0.1 (else use API keys)",
        )
    if not is_loopback(gateway.admin_host) and not gateway.admin_token_sha256:
        yield Problem(
            ("gateway", "admin_host"),
            f"got {gateway.admin_host!r} without gateway.admin_token_sha256; allowed: a loopback address, or a token (`hmas key new`)",
        )
    if gateway.port == gateway.admin_port != 0 and gateway.host == gateway.admin_host:
        yield Problem(("gateway", "admin_port"), f"got {gateway.admin_port}, which is gateway.port too; allowed: another port")


def _engines(config: Config) -> Iterator[Problem]:
    seen_names: dict[str, int] = {}
    seen_urls: dict[str, int] = {}
    sources: dict[tuple[str, str], int] = {}
    for position, engine in enumerate(config.engines):
        for key, value, seen in (("name", engine.name, seen_names), ("url", engine.url.rstrip("/").lower(), seen_urls)):
            first = seen.setdefault(value, position)
            if first != position:
                yield Problem(("engines", position, key), f"got {value!r}, which engines[{first}] has too; allowed: one of its own")
        yield from _sizes(config, engine, "engines", position)
        if engine.kv_events is not None:
            yield from _kv_events(engine.kv_events, position, sources)


def _engines_dns(config: Config) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for position, entry in enumerate(config.engines_dns):
        first = seen.setdefault(entry.name, position)
        if first != position:
            yield Problem(
                ("engines_dns", position, "name"), f"got {entry.name!r}, which engines_dns[{first}] has too; allowed: one of its own"
            )
        if len(entry.name) > DNS_NAME_MOST:
            text = f"got {len(entry.name)} characters, and the address of each instance stands behind it; allowed: up to {DNS_NAME_MOST}"
            yield Problem(("engines_dns", position, "name"), text)
        if entry.record == "A" and entry.url.startswith("https:"):
            text = f"got {entry.url!r}, whose certificate names a host and no address; allowed: http, or record SRV"
            yield Problem(("engines_dns", position, "url"), text)
        if entry.kv_events is not None:
            yield Problem(("engines_dns", position, "kv_events"), "got an endpoint, but every instance has its own; allowed: none")
        yield from _sizes(config, entry, "engines_dns", position)


def _ports(config: Config) -> Iterator[Problem]:
    for setting, engines in (("engines", config.engines), ("engines_dns", config.engines_dns)):
        for position, engine in enumerate(engines):
            try:
                urlsplit(engine.url).port  # noqa: B018 - reading it checks it
            except ValueError as error:
                yield Problem((setting, position, "url"), f"got {engine.url!r}: {error}; allowed: a port from 0 to 65535, or none")


def _sizes(config: Config, engine: EngineConfig, setting: str, position: int) -> Iterator[Problem]:
    if config.agents.statera_n_run_min > engine.n_run_max:
        text = f"got {engine.n_run_max}, below agents.statera_n_run_min {config.agents.statera_n_run_min}; allowed: at least that"
        yield Problem((setting, position, "n_run_max"), text)
    if engine.kv_capacity_bytes and not (engine.kv_bytes_per_token or engine.model_config):
        yield Problem(
            (setting, position, "kv_capacity_bytes"),
            f"got {engine.kv_capacity_bytes}, which says nothing of tokens; allowed: with model_config or kv_bytes_per_token beside it",
        )
    if engine.model_config:
        try:
            model_kv_bytes(engine.model_config, tp=engine.tp, dtype=engine.kv_cache_dtype)
        except ProfileError as error:
            yield Problem((setting, position, "model_config"), str(error))


def _kv_events(events: KvEventsConfig, position: int, sources: dict[tuple[str, str], int]) -> Iterator[Problem]:
    """Several engines may connect to one endpoint of the gateway; then only the topic tells whose events they are."""
    for (endpoint, topic), first in sources.items():
        if endpoint == events.endpoint and (topic == events.topic or not (topic and events.topic)):
            yield Problem(
                ("engines", position, "kv_events", "topic"),
                f"got {events.topic!r} at the endpoint that engines[{first}] has too; allowed: for each of them a topic of its own",
            )
            break
    sources[events.endpoint, events.topic] = position
    for setting in ("endpoint", "replay_endpoint"):
        port = getattr(events, setting).removeprefix("tcp://").rpartition(":")[2]
        if port.isdigit() and not 1 <= int(port) <= 65535:
            yield Problem(("engines", position, "kv_events", setting), f"got port {port}; allowed: 1 to 65535")


def _routers(config: Config) -> Iterator[Problem]:
    for model, text in routers(config).items():
        path: ConfigPath = ("scheduler", "routing_weights") if model == "*" else ("models", model)
        try:
            read_router(text)
        except PolicyError as error:
            yield Problem(path, str(error))
    try:
        meta_routers(config.agents, DEFAULT_ROUTER)
    except PolicyError as error:
        yield Problem(("agents", "meta_routers"), str(error))
    for model, own in config.models.items():
        if model in own.failover:
            yield Problem(("models", model, "failover"), f"got {model!r}, the model itself; allowed: other models")


def _tenants(config: Config) -> Iterator[Problem]:
    holders: dict[str, tuple[str, int]] = {}
    for name, tenant in config.tenants.items():
        if tenant.burst_tokens and not tenant.tokens_per_minute:
            yield Problem(
                ("tenants", name, "burst_tokens"), f"got {tenant.burst_tokens} without tokens_per_minute; allowed: 0, or a quota beside it"
            )
        for position, digest in enumerate(tenant.key_sha256):
            owner, first = holders.setdefault(digest, (name, position))
            if (owner, first) != (name, position):
                yield Problem(
                    ("tenants", name, "key_sha256", position),
                    f"the same key stands at tenants.{owner}.key_sha256[{first}]; allowed: a key belongs to one tenant, once",
                )


def _bus(config: Config) -> Iterator[Problem]:
    url = config.bus.url
    if url and not url.startswith(BUS_SCHEMES):
        yield Problem(("bus", "url"), f"got scheme {url.split(':', 1)[0]!r}; allowed: {', '.join(BUS_SCHEMES)} or empty")
    elif not _is_whole(url):
        allowed = "a port from 0 to 65535 or none, and in a password %2F for /, %23 for #, %3F for ? and %5B for ["
        text = f"got an address whose host and port cannot be read (not shown, as it may hold a password); allowed: {allowed}"
        yield Problem(("bus", "url"), text)
    if url.startswith("unix://"):
        length = len(url.removeprefix("unix://").split("?", 1)[0].encode())
        if length > UNIX_PATH_LIMIT:
            yield Problem(("bus", "url"), f"the socket's path has {length} bytes; allowed: {UNIX_PATH_LIMIT} at most")


def _is_whole(url: str) -> bool:
    """Whether host and port of a bus server can be read. A / # ? or [ in a password ends them too early, which leaves its @ behind them."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError:
        return False
    return parts.scheme == "unix" or "@" not in parts.path + parts.fragment


def _agents(config: Config) -> Iterator[Problem]:
    agents = config.agents
    try:
        check_parameters(config.scheduler.policy, config.scheduler.parameters)
    except PolicyError as error:
        yield Problem(("scheduler", "parameters"), str(error))
    strange = [name for name in named(agents.only) if name not in AGENT_NAMES]
    if strange:
        yield Problem(
            ("agents", "only"), f"got {', '.join(map(repr, strange))}; allowed: {', '.join(AGENT_NAMES)}, or an empty text for all"
        )
    unknown = [name for name in named(agents.meta_policies) if name not in POLICIES]
    if unknown:
        yield Problem(("agents", "meta_policies"), f"got {', '.join(map(repr, unknown))}; allowed: {', '.join(POLICIES)}")
    for setting, words, there in (
        ("statera_tuning", "a file", Path.is_file),
        ("prediction_model", "a folder", Path.is_dir),
        ("meta_model", "a file or folder", Path.exists),
    ):
        path = getattr(agents, setting)
        if path and not there(Path(path).expanduser()):
            yield Problem(("agents", setting), f"got {path!r}; allowed: {words} that is there, or an empty text")
    address = agents.perception_reader.startswith(("http://", "https://"))
    if address and not agents.perception_endpoint_model:
        yield Problem(
            ("agents", "perception_endpoint_model"),
            f"got an empty text with perception_reader {agents.perception_reader!r}; allowed: the name of a model that it serves",
        )
    if agents.meta_selector == "llm" and not agents.meta_llm_url:
        yield Problem(
            ("agents", "meta_llm_url"),
            "got an empty text with meta_selector 'llm'; allowed: the address of an OpenAI-compatible server, such as http://127.0.0.1:8000",
        )
    if agents.statera_band_low >= agents.statera_band_high:
        yield Problem(
            ("agents", "statera_band_low"),
            f"got {agents.statera_band_low}, not below agents.statera_band_high {agents.statera_band_high}; allowed: a lower value",
        )
    if agents.qos_short_window_s > agents.qos_long_window_s:
        yield Problem(
            ("agents", "qos_short_window_s"),
            f"got {agents.qos_short_window_s}, above agents.qos_long_window_s {agents.qos_long_window_s}; allowed: at most that",
        )
    if agents.enabled and 0 < config.scheduler.n_run < agents.statera_n_run_min:
        yield Problem(
            ("scheduler", "n_run"),
            f"got {config.scheduler.n_run}, below agents.statera_n_run_min {agents.statera_n_run_min}; allowed: 0, or at least that",
        )
