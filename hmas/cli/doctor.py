"""`hmas doctor`: checks the installation, one thing at a time, and says what to fix."""

import asyncio
import os
import platform
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import click
import redis

from hmas.agents.meta.make import SELECTOR_PLUGINS
from hmas.agents.perception.readers import READER_PLUGINS
from hmas.agents.statera.agent import LAW_PLUGINS
from hmas.cli.admin import admin_url_option, config_option, connect, read_config
from hmas.cli.engines import kv_event_words
from hmas.cli.output import EXIT_FAILED, example, json_option, say, say_json, table
from hmas.cli.status import each_agent, flood_words, freshness, mqtt_words
from hmas.controller.bus.address import without_secrets
from hmas.controller.bus.embedded import LEAST_VERSION, find_server
from hmas.controller.config.derived import bus_dir, overrides_dir, state_dir
from hmas.controller.config.loader import advice
from hmas.controller.config.override_directory import OverrideDirectory
from hmas.controller.config.plugins import Plugin, load_plugins
from hmas.controller.config.schema import Config, EngineConfig
from hmas.controller.control.overrides import conflicts
from hmas.controller.core.errors import AdminError, BusError, ConfigError
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.runtime.ports import bind_error
from hmas.engines.registry import connect_engine
from hmas.workloads.catalogue import WORKLOAD_PLUGINS

State = Literal["OK", "WARN", "FAIL"]
LEAST_FILES = 4096
LEAST_DISK_MB = 200
MAX_SKEW_S = 2.0
TIMEOUT_S = 3.0
OUTSIDE_SHARE = 0.05
"""Share of requests with an input outside of a model's training data above which there is a warning."""
ASIDE = "the gateway serves by its own defaults until the answers are better; where they stay worse, leave the agent out by agents.only"
LATE = "it hangs or is gone: see its log. If it keeps crashing, `hmas up` tries every five minutes, systemd stops. A fallback serves"
MQTT_REFUSED = "what it did not take is lost: look at the broker's ACL and limits, and at `hmas events --kind mqtt`"
MQTT_REFUSED_S = 3600.0
MQTT_AWAY = "serving goes on, and it tries again at least every 30 s; `hmas mqtt check` says what the broker refuses"
KV_EVENTS = "its prefixes are known approximately meanwhile; docs/routing.md says what each state means and what to do"
STANDS_IN = (
    "`hmas models show` says whether the model is whole; after drift, train it on traffic like yours (`hmas train`), or roll it back"
)
BUS_LEFT = "left by an earlier run; `hmas up` starts a new server"
BUS_HANGS = "`hmas up` runs on it, and starts it again once it has ended: end a server that hangs"
BUS_TAKEN = "give each gateway a `bus.key_prefix` of its own, or stop one of them (docs/operations.md)"
ENGINE_DOWN = "start it, or correct its address; engines that are up serve meanwhile"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        found: What was found.
        do: What to do about it; empty if all is in order.
    """

    name: str
    state: State
    found: str
    do: str = ""


def check_python() -> Iterator[Check]:
    """The Python interpreter and the operating system."""
    words = f"Python {platform.python_version()} on {platform.system()} {platform.release()}, {os.cpu_count()} processors"
    if not hasattr(os, "pidfd_open"):
        yield Check("python", "FAIL", words, "`hmas up` needs Linux 5.4 or newer")
    else:
        yield Check("python", "OK", words)


def check_limits() -> Iterator[Check]:
    """Open files: every client and every engine connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < LEAST_FILES:
        raised = f"`ulimit -n {min(hard, 65_536) if hard > 0 else 65_536}`, or LimitNOFILE= in the unit"
        yield Check("open files", "WARN", f"limit {soft}", f"raise it to {LEAST_FILES} or more: {raised}")
    else:
        yield Check("open files", "OK", f"limit {soft}")


def check_advice(config: Config, env: Mapping[str, str], status: dict[str, Any] | None) -> Iterator[Check]:
    """Settings that are allowed but probably not intended: those of the running gateway, else those of this command's configuration."""
    running = status["config"] if status is not None else None
    words = advice(config, env) if running is None else running["advice"]
    yield from (Check("config", "WARN", word) for word in words)
    if words:
        return
    engines, tenants = (len(config.engines), len(config.tenants)) if running is None else (running["engines"], running["tenants"])
    counts = f"{engines} engine{'s' * (engines != 1)}, {tenants} tenant{'s' * (tenants != 1)}"
    open_door = running["no_auth"] if running is not None else config.gateway.no_auth
    of = "" if running is None else "of the running gateway: "
    yield Check("config", "OK", f"{of}{counts}{', served without keys (no_auth)' if open_door else ''}")


def check_plugins(plugins: Sequence[Plugin]) -> Iterator[Check]:
    """What installed plugins add to H-MAS."""
    for plugin in plugins:
        if plugin.refused:
            found = f"{plugin} is skipped: {plugin.refused}"
            yield Check("plugins", "WARN", found, "mend or uninstall it (docs/extending.md)")
    used = [f"{plugin.name} ({plugin.group})" for plugin in plugins if not plugin.refused]
    if len(used) == len(plugins):
        yield Check("plugins", "OK", ", ".join(used) or "none")


def check_state_dir(config: Config) -> Iterator[Check]:
    """The folder of sockets and data."""
    path = state_dir(config)
    there = path
    # Path.exists would raise an error below a folder that this user may not look into.
    while not os.path.exists(there):  # noqa: PTH110
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        yield Check("state_dir", "FAIL", f"{path} cannot be written", "give this user the right to write there, or set another state_dir")
        return
    free_mb = shutil.disk_usage(there).free >> 20
    if free_mb < LEAST_DISK_MB:
        yield Check("state_dir", "WARN", f"{path}, {free_mb} MB free", f"free at least {LEAST_DISK_MB} MB")
    else:
        yield Check("state_dir", "OK", f"{path}, {free_mb} MB free")


def check_overrides(config: Config | None, held: dict[str, Any] | None) -> Iterator[Check]:
    """The override directory and every file in it. `held`: what a running gateway says of it, which also refuses what it cannot apply."""
    if held is None and config is not None:
        now_s, directory = SystemClock().now_s(), OverrideDirectory(overrides_dir(config))
        result = directory.scan(now_s)
        active = [override for override in result.overrides if override.active(now_s)]
        held = {
            "directory": str(directory.path),
            "overrides": active,
            "refused": [asdict(error) for error in result.errors],
            "conflicts": [asdict(conflict) for conflict in conflicts(active, now_s)],
        }
    if held is None:
        return
    for error in held["refused"]:
        yield Check("overrides", "WARN", f"{error['file']}: {error['message']}", "mend or remove the file")
    for conflict in held["conflicts"]:
        what = f"{conflict['setting']}: {conflict['winner']} wins over {', '.join(conflict['losers'])}"
        yield Check("overrides", "WARN", what, "`hmas override list`, then clear what is no longer meant")
    if not held["refused"]:
        yield Check("overrides", "OK", f"{held['directory']}, {len(held['overrides'])} in force")


def check_bus(config: Config, *, serves: bool = False) -> Iterator[Check]:
    """The configured bus server, or the one that would be started. `serves`: a gateway answers, and so `hmas up` runs on its server."""
    socket = bus_dir(config) / "r.sock"
    if config.bus.url or os.path.exists(socket):  # noqa: PTH110 - as in `check_state_dir`
        do = "start it, or correct bus.url" if config.bus.url else BUS_HANGS if serves else BUS_LEFT
        yield _ask_bus(config.bus.url or f"unix://{socket}", do, started=not config.bus.url)
        return
    try:
        binary = find_server()
    except BusError as error:
        yield Check("bus", "FAIL", "no server configured and none to start", str(error))
        return
    yield Check("bus", "OK", f"`hmas up` starts {binary.path.name} {binary.version} from {binary.origin}")


def _ask_bus(url: str, do: str, *, started: bool) -> Check:
    shown = without_secrets(url)
    try:
        with redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as client:
            info: dict[str, Any] = client.info("server")
            seconds, micros = client.time()
    except (redis.RedisError, ValueError, OSError) as error:
        return Check("bus", "FAIL" if not started else "WARN", f"{shown} does not answer: {error}", do)
    version = str(info.get("valkey_version") or info.get("redis_version", "?"))
    compatible = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2] if part.isdigit())
    # A new clock shows the machine's current wall time.
    skew_s = SystemClock().now_s() - (seconds + micros / 1e6)
    if compatible < LEAST_VERSION:
        return Check("bus", "FAIL", f"{shown}, version {version}", "use Redis 7.0, Valkey 7.2 or newer")
    if abs(skew_s) > MAX_SKEW_S:
        return Check("bus", "WARN", f"{shown}, version {version}, its clock is {skew_s:+.1f} s off", "synchronise the clocks (NTP)")
    return Check("bus", "OK", f"{shown}, version {version}")


def check_engines(config: Config, env: Mapping[str, str]) -> Iterator[Check]:
    """Whether each engine answers, and its kind."""
    if config.engines:
        yield from asyncio.run(_ask_engines(config.engines, env))


async def _ask_engines(engines: list[EngineConfig], env: Mapping[str, str]) -> list[Check]:
    return list(await asyncio.gather(*(_ask_engine(engine, env) for engine in engines)))


async def _ask_engine(config: EngineConfig, env: Mapping[str, str]) -> Check:
    name = f"engine {config.name}"
    engine = await connect_engine(
        name=config.name,
        url=config.url,
        kind=config.kind,
        api_key=env.get(config.api_key_env, ""),
        control_token=env.get(config.control_token_env, ""),
        connect_timeout_s=TIMEOUT_S,
    )
    try:
        snapshot = await engine.snapshot(SystemClock().now_s())
    finally:
        await engine.close()
    if not snapshot.healthy:
        return Check(name, "FAIL", f"{config.url}: {snapshot.detail}", ENGINE_DOWN)
    able = engine.capabilities
    knobs = ", ".join(able.live_knobs) or "none"
    words = f"{config.url}: {able.kind} {able.version}".rstrip() + f"; live knobs: {knobs}"
    if not able.load_signals:
        return Check(name, "WARN", words, "it shows no load figures (/metrics), so the window is steered by latencies alone")
    return Check(name, "OK", words)


def check_gateway(config: Config | None, status: dict[str, Any] | None, trouble: str) -> Iterator[Check]:
    """The running gateway and its agents; if no gateway runs, whether its ports are free."""
    if status is None:
        yield Check("gateway", "WARN", trouble, "start it with `hmas up`, or name it with --admin")
        if config is not None:
            yield from _check_ports(config)
        return
    if status["ready"]:
        yield Check("gateway", "OK", f"{status['gateway']}, version {status['version']}, policy {status['policy']['name']}")
    else:
        yield Check("gateway", "FAIL", "not ready: " + "; ".join(status["not_ready_because"]), "see the engines and the gateway's log")
    if not status["bus"]["connected"]:
        yield Check("gateway's bus", "FAIL", status["bus"]["detail"], "serving goes on with fallbacks; bring the bus back")
    if taken_by := status["bus"]["taken_by"]:
        yield Check("gateway's bus", "FAIL", f"another gateway, {taken_by}, has taken it: this one posts nothing", BUS_TAKEN)
    if status["mqtt"]:
        yield check_mqtt(status["mqtt"])
    yield from check_load(status)
    own = set() if config is None else {engine.name for engine in config.engines}
    # What is reached from here may not be for the gateway, and an engine that answers may fail its requests.
    for item in status["instances"]:
        if item["name"] not in own:
            yield _known_engine(item, f"engine {item['name']}")
        elif not item["healthy"]:
            yield _known_engine(item, f"engine {item['name']}, by the gateway")
    for item in status["instances"]:
        if item["kv_events"] is not None:
            # Before the first event nothing is wrong: an idle engine sends none.
            well = item["kv_events"]["state"] in ("live", "waiting", "replaying")
            yield Check(
                f"KV events of {item['name']}", "OK" if well else "WARN", kv_event_words(item["kv_events"]), "" if well else KV_EVENTS
            )
    yield from check_agents(status["agents"])


def check_clock(status: dict[str, Any], now_s: float) -> Check:
    """Whether the gateway's clock is that of this machine. `now_s`: when the gateway's answer came."""
    skew_s = now_s - (status["started_s"] + status["uptime_s"])
    if abs(skew_s) > MAX_SKEW_S:
        do = "the machine's clock was set after the gateway started: restart gateway and agents, or each drops the other's messages"
        return Check("clock", "WARN", f"the gateway's clock is {-skew_s:+.1f} s off", do)
    return Check("clock", "OK", f"the gateway's clock agrees within {MAX_SKEW_S:g} s")


def check_mqtt(mqtt: dict[str, Any]) -> Check:
    """Whether the MQTT broker is there, and has taken every message of the last hour."""
    advice = MQTT_AWAY if not mqtt["connected"] else MQTT_REFUSED if 0.0 <= mqtt["refused_ago_s"] < MQTT_REFUSED_S else ""
    return Check("mqtt", "WARN" if advice else "OK", mqtt_words(mqtt), advice)


def check_load(status: dict[str, Any]) -> Iterator[Check]:
    """Whether more requests come than the engines serve in time, and which tenants flood."""
    queue = status["queue"]
    words = f"{queue['queued']} requests wait, {queue['overdue']} of them past their TTFT target"
    if queue["overdue"]:
        yield Check("load", "WARN", words, "`hmas status` shows which tenants wait and why, `hmas explain` what one request waits for")
    else:
        yield Check("load", "OK", words)
    for tenant in status["tenants"]:
        if tenant["floods"]:
            yield Check(f"tenant {tenant['name']}", "WARN", flood_words(tenant), "to bound it: quota, concurrency_share or max_queued")


def _known_engine(item: dict[str, Any], name: str) -> Check:
    words = f"{item['url']}: {item['kind']} {item['version']}, known to the gateway"
    return Check(name, "OK", words) if item["healthy"] else Check(name, "FAIL", f"{item['url']}: {item['detail']}", ENGINE_DOWN)


def check_agents(agents: dict[str, Any]) -> Iterator[Check]:
    """Every agent: how old its last answer is and may be, and whether its answers are used."""
    if not agents["enabled"]:
        yield Check("agents", "OK", "switched off: policy and windows stay as configured")
        return
    for name, agent in each_agent(agents):
        found = f"last answer: {freshness(name, agent)}"
        if agent["state"] == "late":
            yield Check(f"agent {name}", "FAIL", found, LATE)
        elif agent["state"] == "starved":
            # What to do stands beside the agent that it waits for.
            yield Check(f"agent {name}", "WARN", found)
        else:
            yield Check(f"agent {name}", "OK", found if agent["state"] != "left out" else freshness(name, agent))
        aside = [f"{one['answers']}: {one['words']}" for one in agent["answers"] if one["set_aside"]]
        if aside:
            yield Check(f"agent {name}", "WARN", f"set aside, worse than the gateway's own estimates: {'; '.join(aside)}", ASIDE)


def _check_ports(config: Config) -> Iterator[Check]:
    gateway = config.gateway
    for name, host, port in (("port", gateway.host, gateway.port), ("admin port", gateway.admin_host, gateway.admin_port)):
        taken = bind_error(host, port)
        if taken:
            yield Check(name, "FAIL", f"{host}:{port}: {taken}", f"stop what uses it (`ss -ltnp | grep :{port}`), or choose another port")
        else:
            yield Check(name, "OK", f"{host}:{port} is free")


def check_models(reports: list[dict[str, Any]]) -> Iterator[Check]:
    """Whether the configured models run, and get inputs like those of their training; skips models without any input."""
    for report in reports:
        if report["role"] != "active" or not (report["requests"] or report["fallback"]):
            continue
        name = f"model {report['model']} of {report['agent']}" + (f" {report['instance']}" if report["instance"] else "")
        if report["fallback"]:
            yield Check(name, "WARN", f"STANDS IN for the configured one: {report['fallback']}", STANDS_IN)
            continue
        # Meta's model gets long views, not requests.
        asked = f"{report['requests']} {'long views' if report['agent'] == 'meta' else 'requests'}"
        outside = {key.partition("/")[2]: count for key, count in report["figures"].items() if key.startswith("out_of_range/")}
        many = {key: count for key, count in sorted(outside.items()) if count > OUTSIDE_SHARE * report["requests"]}
        if many:
            words = ", ".join(f"{key} {count:.0f} times" for key, count in many.items())
            do = "its answers on such inputs are worth less; train it on traffic like yours (`hmas train`), and compare it in the shadow"
            yield Check(name, "WARN", f"of {asked} outside of what it was trained on: {words}", do)
        else:
            yield Check(name, "OK", f"{asked}, within {OUTSIDE_SHARE:.0%} like those that it was trained on")


@click.command(epilog=example("hmas doctor --config hmas.yaml"))
@json_option
@admin_url_option
@config_option
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool, admin_url: str | None, config_file: str | None) -> None:
    """Check Python, plugins, configuration, bus, engines, gateway, agents, models, overrides, clock, ports and limits.

    Each check prints OK, WARN or FAIL, and what to do. Exit code 1 if a check fails.
    """
    found = list(examine(admin_url, config_file))
    failed = any(check.state == "FAIL" for check in found)
    if as_json:
        say_json({"ok": not failed, "checks": [asdict(check) for check in found]})
    else:
        say(table(["", "what", "found"], [(check.state, check.name, check.found) for check in found]))
        todo = [f"{check.state}  {check.name}: {check.do}" for check in found if check.do]
        if todo:
            say("\nWhat to do:\n" + "\n".join(todo))
    ctx.exit(EXIT_FAILED if failed else 0)


def examine(admin_url: str | None, config_file: str | None) -> Iterator[Check]:
    """Every check. Without a usable configuration, only those that do not need one, and those of a gateway that runs."""
    yield from check_python()
    yield from check_limits()
    yield from check_plugins(all_plugins())
    config = None
    try:
        config = read_config(config_file)
    except ConfigError as error:
        yield Check("config", "FAIL", str(error), "mend it; `hmas config check` says the same. A gateway that runs keeps what it has read")
    status, trouble = _status(admin_url, config_file)
    # The checks below may wait for seconds.
    now_s = SystemClock().now_s()
    if config is not None:
        yield from check_advice(config, os.environ, status)
        yield from check_state_dir(config)
        yield from check_bus(config, serves=status is not None)
        yield from check_engines(config, os.environ)
    yield from check_overrides(config, None if status is None else status["overrides"])
    yield from check_gateway(config, status, trouble)
    if status is not None:
        yield check_clock(status, now_s)
        yield from check_models(status.get("models", []))


def all_plugins() -> tuple[Plugin, ...]:
    """Every plugin of every extension point, loaded."""
    own = (SELECTOR_PLUGINS, LAW_PLUGINS, READER_PLUGINS, WORKLOAD_PLUGINS)
    return (*load_plugins(), *(plugin for point in own for plugin in point.load()))


def _status(admin_url: str | None, config_file: str | None) -> tuple[dict[str, Any] | None, str]:
    try:
        return connect(admin_url, config_file).status(), ""
    except (AdminError, ConfigError) as error:
        return None, str(error)
