"""`hmas status`: prints the state of a gateway on one page."""

from typing import Any

import click

from hmas.cli.admin import takes_client
from hmas.cli.engines import engine_table
from hmas.cli.output import EXIT_FAILED, duration_words, example, json_option, show, table
from hmas.cli.override import override_list
from hmas.cli.policy import policy_line
from hmas.cli.router import router_lines
from hmas.controller.admin.client import AdminClient
from hmas.controller.scheduling.settings import BODY_BYTES_WAITING_MOST


@click.command(epilog=example("hmas status --json | jq .goodput"))
@json_option
@click.pass_context
@takes_client
def status(client: AdminClient, ctx: click.Context, *, as_json: bool) -> None:
    """Show active settings, load, and the health of engines and agents. Exit code 1 if the gateway is not ready."""
    document = client.status()
    show(document, page, as_json=as_json)
    ctx.exit(0 if document["ready"] else EXIT_FAILED)


def page(document: dict[str, Any]) -> str:
    """The page as text."""
    ready = "ready" if document["ready"] else "NOT READY: " + "; ".join(document["not_ready_because"])
    lines = [
        f"gateway   {document['gateway']}, version {document['version']}, up for {duration_words(document['uptime_s'])}, {ready}",
        *([f"preset    {preset}"] if (preset := document["config"].get("preset", "default")) != "default" else []),
        f"policy    {policy_line(document['policy'])}",
        *(f"router    {line}" for line in router_lines(document["routers"])),
        f"queue     {_queue(document['queue'])}",
        f"requests  {_counts(document['counts'])}",
        f"goodput   {_goodput(document['goodput'])}",
        f"fairness  {_fairness(document['fairness'])}",
        *(f"flood     {flood_words(tenant)}" for tenant in document["tenants"] if tenant["floods"]),
        f"bus       {_bus(document['bus'])}",
        *([f"mqtt      {mqtt_words(document['mqtt'])}"] if document["mqtt"] else []),
        f"agents    {_agents(document['agents'])}",
        *([f"sent      {_on_defaults(document['on_defaults'])}"] if _has_late(document["on_defaults"]) else []),
        *(f"model     {model_line(report)}" for report in document["models"]),
        "",
        engine_table(document["instances"]),
    ]
    if len(document["tenants"]) > 1:
        lines += ["", table(TENANT_HEADS, map(_tenant_figures, document["tenants"]))]
    if document["agents"]["enabled"]:
        lines += ["", agent_table(document["agents"])]
    tenants = [item for item in document["tenants"] if _limited(item) or item["held"]]
    if tenants:
        heads = ["limits of", "weight", "tokens a minute", "requests a minute", "share", "cap", "most waiting", "set by operators"]
        lines += ["", table(heads, map(_tenant, tenants))]
    models = document["queue"]["models"]
    if len(models) > 1:
        rows = ((name, item["queued"], f"{item['retry_after_s']:.0f} s") for name, item in models.items())
        lines += ["", table(["model", "waiting", "Retry-After"], rows)]
    overrides = document["overrides"]
    if overrides["overrides"] or overrides["refused"]:
        lines += ["", "set by operators:", override_list(overrides)]
    return "\n".join(lines)


def model_line(report: dict[str, Any]) -> str:
    """One agent's model and its figures, as text."""
    figures, coverage = report.get("figures", {}), report.get("coverage", {})
    whose = f"{report['agent']} {report['instance']}".rstrip()
    parts = [f"{whose}: {report['model']}" + (" in the shadow" if report.get("role") == "shadow" else "")]
    if report.get("fallback"):
        parts.append(f"STANDS IN: {report['fallback']}")
    parts.append(f"{report.get('requests', 0)} answered since it was loaded")
    for name, label in (
        ("unknown_share", "type unknown"),
        ("median_ape", "length off by"),
        ("ttft_ape", "TTFT off"),
        ("tpot_ape", "TPOT off"),
    ):
        if name in figures:
            parts.append(f"{label} {figures[name]:.0%}")
    if "0.9" in coverage:
        parts.append(f"{coverage['0.9']:.0%} within its 90 % bound")
    if "inference_ms" in figures:
        parts.append(f"{figures['inference_ms']:.2f} ms a request")
    if "pairs" in figures:
        better = "lower" if figures["gain"] >= 0 else "higher"
        parts.append(f"error {abs(figures['gain']):.1%} {better} on {figures['pairs']:.0f} (evidence {figures['evidence']:.1f} of 4.6)")
    return ", ".join(parts)


def _queue(queue: dict[str, Any]) -> str:
    text = f"{queue['queued']} of {queue['limit']} waiting, {queue['queued_tokens']} prompt tokens"
    return text + (
        f", oldest {duration_words(queue['oldest_wait_ms'] / 1000.0)}, {queue['overdue']} past their TTFT target" if queue["queued"] else ""
    )


def _counts(counts: dict[str, Any]) -> str:
    ended = ", ".join(f"{number} {kind}" for kind, number in counts["ended"].items() if number) or "none ended"
    broken = "" if counts["conserved"] else "; THE SUM DOES NOT ADD UP, please report it"
    return f"{counts['arrived']} arrived since the gateway started, {counts['queued']} queued, {counts['running']} running, {ended}{broken}"


def _goodput(goodput: dict[str, Any]) -> str:
    if goodput["goodput_rate"] is None:
        return f"nothing ended in the last {duration_words(goodput['window_s'])}"
    failed = goodput["ended"] - goodput["completed"]
    share = f"{goodput['goodput_rate']:.0%} of all {goodput['ended']} that ended" + (
        f", {failed} of which were not served" if failed else ""
    )
    parts = [f"{goodput['goodput_rps']:.2f}/s met both targets ({share}) in the last {duration_words(goodput['window_s'])}"]
    for name, label in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
        values = goodput[name]
        if values["p50"] is not None:
            parts.append(f"{label} p50 {values['p50']:.0f} p95 {values['p95']:.0f} ms")
    return ", ".join(parts)


def _fairness(fairness: dict[str, Any]) -> str:
    if len(fairness["rates"]) < 2:
        return "not measured: no two tenants had requests wait for longer than they take, for a tenth of the last minute"
    worst = min(fairness["rates"], key=lambda tenant: fairness["rates"][tenant])
    return (
        f"of {len(fairness['rates'])} tenants that had requests waiting for long, {worst} got the least service for its weight: "
        f"{fairness['max_min']:.0%} of what the best got (Jain's index {fairness['jain']:.3f})"
    )


def flood_words(tenant: dict[str, Any]) -> str:
    """What a tenant that floods does, and what it gets."""
    return (
        f"{tenant['name']} asks for more than the engines serve, or than five times its share: it is held to its share while others wait "
        f"({tenant['waiting']} waiting, {tenant['running']} running, {tenant['service_share']:.0%} of the last minute's service)"
    )


TENANT_HEADS = (
    *("tenant", "weight", "in time", "TTFT p50", "p95 ms", "TPOT p50", "p95 ms"),
    *("service", "by weight", "running", "waiting", "oldest", "waits for"),
)


def _tenant_figures(tenant: dict[str, Any]) -> tuple[object, ...]:
    """A tenant's last minute and what it has in the queue. `by weight`: the share of the service that its weight gives it."""
    latencies = [tenant["goodput"][name][which] for name in ("ttft_ms", "tpot_ms") for which in ("p50", "p95")]
    return (
        tenant["name"],
        f"{tenant['weight']:g}",
        in_time(tenant),
        *("-" if value is None else f"{value:.0f}" for value in latencies),
        f"{tenant['service_share']:.0%}",
        f"{tenant['weight_share']:.0%}",
        tenant["running"],
        tenant["waiting"],
        duration_words(tenant["oldest_wait_ms"] / 1000.0) if tenant["waiting"] else "-",
        tenant["waits_for"],
    )


def in_time(tenant: dict[str, Any]) -> str:
    """How many of a tenant's requests that ended in the last minute met their targets."""
    return f"{tenant['goodput']['slo_met']} of {tenant['goodput']['ended']}"


def _limited(tenant: dict[str, Any]) -> bool:
    """Whether the tenant has a quota, a share, a cap, or a bound of its own on what waits."""
    bounded = tenant["concurrency_share"] < 1 or tenant["max_running"] > 0
    return bool(tenant["quotas"]) or bounded or _most_waiting(tenant) != "-"


def _tenant(tenant: dict[str, Any]) -> tuple[str, ...]:
    quotas = tenant["quotas"]
    told = [f"{quotas[what]['limit']} ({quotas[what]['remaining']} left)" if what in quotas else "-" for what in ("tokens", "requests")]
    if tenant["burst_tokens"]:
        told[0] += f", {tenant['burst_tokens']} at once"
    share = f"{tenant['concurrency_share']:g}" if tenant["concurrency_share"] < 1 else "-"
    most = str(tenant["max_running"] or "-"), _most_waiting(tenant)
    return tenant["name"], f"{tenant['weight']:g}", *told, share, *most, ", ".join(tenant["held"]) or "-"


def _most_waiting(tenant: dict[str, Any]) -> str:
    """How many requests and bytes of the tenant may wait, where that is bounded otherwise than for every tenant."""
    most = [f"{tenant['max_queued']} requests"] if tenant["max_queued"] else []
    if (bodies := tenant["max_body_bytes_waiting"]) != BODY_BYTES_WAITING_MOST:
        most.append(f"bodies of {bodies:,} bytes" if bodies else "any bodies")
    return ", ".join(most) or "-"


def _bus(bus: dict[str, Any]) -> str:
    state = "connected" if bus["connected"] else f"AWAY: {bus['detail']}"
    extra = [f"{bus[name]} {name}" for name in ("dropped", "rejected") if bus[name]]
    if bus["taken_by"]:
        extra.append(f"TAKEN by another gateway, {bus['taken_by']}: this one posts nothing")
    return ", ".join([state, *extra])


def mqtt_words(mqtt: dict[str, Any]) -> str:
    """Whether the MQTT broker is there, for how long it has been so, and what waits for it or was dropped."""
    span = duration_words(mqtt["for_s"])
    parts = [f"{mqtt['broker']} connected for {span}" if mqtt["connected"] else f"{mqtt['broker']} AWAY for {span}"]
    if not mqtt["connected"]:
        parts[0] += f": {mqtt['reason'] or 'no answer yet'}"
        parts.append(f"{mqtt['waiting']} messages wait")
    if mqtt["dropped"]:
        parts.append(f"{mqtt['dropped']} messages were dropped since the gateway started: more than mqtt.queue_most waited")
    if mqtt["refused"]:
        ago = duration_words(mqtt["refused_ago_s"])
        parts.append(f"it did not take {mqtt['refused']} messages, the last one {ago} ago, {mqtt['refusal']}")
    return ", ".join(parts)


def _agents(agents: dict[str, Any]) -> str:
    if not agents["enabled"]:
        return "switched off; policy and windows stay as configured"
    by_state: dict[str, list[str]] = {}
    for name, agent in each_agent(agents):
        by_state.setdefault(agent["state"], []).append(name)
    troubles = [
        *(f"{name} is LATE" for name in by_state.get("late", ())),
        *(f"{name} waits for {agents[name]['waits_for']}" for name in by_state.get("starved", ())),
        *(f"{name} is starting" for name in by_state.get("starting", ())),
        *(f"{name} is left out" for name in by_state.get("left out", ())),
        *(f"{name}'s {one['answers']} SET ASIDE" for name, agent in each_agent(agents) for one in agent["answers"] if one["set_aside"]),
    ]
    return ", ".join(troubles) or "none is late, no answers are set aside"


def each_agent(agents: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The agents of a status document by name."""
    return [(name, agent) for name, agent in agents.items() if isinstance(agent, dict)]


def agent_table(agents: dict[str, Any]) -> str:
    """A table with one agent per line."""
    rows = [
        (
            name,
            agent["state"] if agent["state"] not in ("late", "starved") else agent["state"].upper(),
            freshness(name, agent),
            "; ".join(_answers(one) for one in _scored(agent)) or "-",
        )
        for name, agent in each_agent(agents)
    ]
    return table(["agent", "state", "last answer", "error of its answers (of what would be used without them)"], rows)


def _scored(agent: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers with a score that says something."""
    return [
        one for one in agent["answers"] if one["set_aside"] or (one["scored"] and one["used"] and one["loss"] + one["default_loss"] > 0.0)
    ]


def _answers(one: dict[str, Any]) -> str:
    return f"{one['answers']} {'SET ASIDE' if one['set_aside'] else 'used'}: {one['loss']:.3f} ({one['default_loss']:.3f})"


SHORT_S = 0.5
"""A wait for an answer that is not worth telling."""


def freshness(name: str, agent: dict[str, Any]) -> str:
    """How old an agent's last answer is, against how old it may be."""
    if agent["state"] == "left out":
        return "left out by agents.only"
    last = "none yet" if agent["age_s"] is None else f"{duration_words(agent['age_s'])} ago"
    waits = f"; it waits for {agent['waits_for']}" if agent["waits_for"] else ""
    if name not in ("perception", "prediction"):
        return f"{last}, may be {agent['limit_s']:.0f} s{waits}"
    if agent["unanswered_s"] is None or agent["unanswered_s"] < SHORT_S:
        return f"{last}, no request waits for one"
    return f"{last}, a request waits for one since {duration_words(agent['unanswered_s'])}, may be {agent['limit_s']:.0f} s{waits}"


def _has_late(found: dict[str, Any]) -> bool:
    return bool(found["dispatched"] and found["on_defaults"])


def _on_defaults(found: dict[str, Any]) -> str:
    """The shares of requests that were dispatched without asking the agents, and before an agent's answer came."""
    count = found["dispatched"]
    unasked = [f"{found['unasked'] / count:.0%} without asking the agents"] if found["unasked"] else []
    late = [f"{number / count:.0%} before {agent}'s answer came" for agent, number in found["on_defaults"].items()]
    shares = " and ".join([*unasked, *late])
    return f"{count} requests in the last {duration_words(found['window_s'])}, {shares}, and so by the gateway's own estimates"
