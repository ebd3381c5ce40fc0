"""From the runs of the gateway's benchmark to rows, and from rows to text."""

from statistics import median
from typing import Any

from gateway_proxies import Proxy

DIRECT, OURS = "direct", "hmas"
HEAD = ("proxy", "conns", "load", "CPU/direct", "spread", "TTFT p50 +ms", "p99 +ms", "rps/direct", "spread", "lost", "runs")


def summarize(proxy: Proxy, connections: int, load: str, direct: list[dict[str, Any]], through: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds with the least and the greatest; what is compared comes from the same round."""
    base = {run["round"]: run for run in direct}
    pairs = [(base[run["round"]], run) for run in through]
    cpu = [ratio(run["proxy_ms"], unit["upstream_ms"]) for unit, run in pairs]
    rps = [ratio(run["rps"], unit["rps"]) for unit, run in pairs]
    added = {q: [run[f"ttft_ms_p{q}"] - unit[f"ttft_ms_p{q}"] for unit, run in pairs] for q in (50, 99)}
    return {
        "proxy": proxy.name,
        "version": proxy.version,
        "connections": connections,
        "load": load,
        "rounds": len(pairs),
        "cpu_over_direct": median(cpu),
        "cpu_over_direct_spread": [min(cpu), max(cpu)],
        "added_ttft_ms_p50": median(added[50]),
        "added_ttft_ms_p99": median(added[99]),
        "added_ttft_ms_p99_spread": [min(added[99]), max(added[99])],
        "rps_over_direct": median(rps),
        "rps_over_direct_spread": [min(rps), max(rps)],
        "proxy_cpu_ms_per_request": median(run["proxy_ms"] for _, run in pairs),
        "bus_cpu_ms_per_request": median(run["bus_ms"] for _, run in pairs),
        "upstream_cpu_ms_per_request": median(unit["upstream_ms"] for unit, _ in pairs),
        "direct_ttft_ms_p50": median(unit["ttft_ms_p50"] for unit, _ in pairs),
        "direct_ttft_ms_p99": median(unit["ttft_ms_p99"] for unit, _ in pairs),
        "rps": median(run["rps"] for _, run in pairs),
        "rps_direct": median(unit["rps"] for unit, _ in pairs),
        "requests": sum(run["requests"] for _, run in pairs),
        "lost": sum(run["lost"] for _, run in pairs),
        "unfinished": sum(run["unfinished"] for _, run in pairs),
        "trouble": proxy.trouble[:3],
    }


def ratio(value: float, base: float) -> float:
    return value / base if base else 0.0


def cost_table(rows: list[dict[str, Any]]) -> str:
    lines = [HEAD]
    for row in rows:
        if "missing" in row:
            lines.append((row["proxy"], *("-",) * (len(HEAD) - 2), "not there"))
            continue
        cpu, rps = row["cpu_over_direct_spread"], row["rps_over_direct_spread"]
        lines.append(
            (
                *(row["proxy"], str(row["connections"]), row["load"], f"{row['cpu_over_direct']:.2f}", f"{cpu[0]:.2f}..{cpu[1]:.2f}"),
                *(f"{row['added_ttft_ms_p50']:.2f}", f"{row['added_ttft_ms_p99']:.2f}", f"{row['rps_over_direct']:.3f}"),
                *(f"{rps[0]:.3f}..{rps[1]:.3f}", str(row["lost"] + row["unfinished"]), str(row["rounds"])),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    bus = [row["bus_cpu_ms_per_request"] / row["upstream_cpu_ms_per_request"] for row in rows if row["proxy"] == OURS]
    if bus:
        text.append(f"the bus server's own process, not in the column: {median(bus):.2f} of direct")
    return "\n".join(text)


def streams_text(found: dict[str, Any]) -> str:
    lines = [f"{found['streams']} streams, an event every {found['pace_ms']:g} ms, {found['seconds']:g} s:"]
    for name in (DIRECT, OURS):
        one = found[name]
        for word, quarter in (("first", one["quarters"][0]), ("last", one["quarters"][-1])):
            lines.append(
                f"  {name:6} {word:5} quarter: TTFT p50 {quarter['ttft_ms_p50']:.2f}, p99 {quarter['ttft_ms_p99']:.2f} ms; "
                f"gap p50 {quarter['gap_ms_p50']:.1f}, p99 {quarter['gap_ms_p99']:.1f} ms"
            )
        lines.append(
            f"  {name:6} open {one['open']}, lost {one['lost'] + one['unfinished']} of {one['requests']}, pace kept {one['pace_kept']:.1%}"
        )
    memory = f"{found['rss_idle_mb']:.1f} MB idle, {found['rss_open_mb']:.1f} MB with all open"
    return "\n".join([*lines, f"  memory: {found['memory_per_stream_kb']:.1f} KB a stream ({memory})"])
