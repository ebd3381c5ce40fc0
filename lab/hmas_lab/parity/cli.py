"""`hmas-lab parity`: whether simulation and live gateway decide alike."""

import time

import click

from hmas.cli.output import EXIT_FAILED, hint, json_option, say, say_json, table
from hmas.controller.scheduling.policies.registry import POLICIES
from hmas_lab.parity.live import run_live
from hmas_lab.parity.log import first_difference
from hmas_lab.parity.scenario import scenarios
from hmas_lab.parity.simulated import run_simulated


@click.command()
@click.option("--policy", "policies", multiple=True, type=click.Choice(sorted(POLICIES)), help="Begin with these only; may be repeated.")
@click.option("--requests", type=click.IntRange(1, 100_000), default=600, show_default=True, help="Length of the trace.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Makes the trace.")
@json_option
@click.pass_context
def parity(ctx: click.Context, policies: tuple[str, ...], requests: int, seed: int, as_json: bool) -> None:
    """Run one seeded trace through the simulation and through the live gateway, and compare their decision logs entry by entry.

    The live side is the gateway's own door with embedded engines behind it and streaming clients before it, over real sockets, in
    virtual time. Exit code 1 where the logs differ.
    """
    found = []
    for scenario in scenarios(sorted(POLICIES), seed=seed, requests=requests):
        if policies and scenario.policy not in policies:
            continue
        simulated = run_simulated(scenario)
        begun_s = time.perf_counter()
        live = run_live(scenario)
        took_s = time.perf_counter() - begun_s
        at = first_difference(simulated, live)
        hint(f"{scenario.policy}, {scenario.overdue}: {len(simulated)} and {len(live)} entries, live in {took_s:.1f} s")
        found.append(
            {
                "policy": scenario.policy,
                "then": scenario.then,
                "overdue": scenario.overdue,
                "requests": requests,
                "entries": len(simulated),
                "equal": at is None,
                "first_difference": at,
                "simulated": str(simulated[at]) if at is not None and at < len(simulated) else "",
                "live": str(live[at]) if at is not None and at < len(live) else "",
            }
        )
    if as_json:
        say_json(found)
    else:
        rows = [
            [
                row["policy"],
                row["then"],
                row["overdue"],
                row["entries"],
                "equal" if row["equal"] else f"differ from {row['first_difference']}",
            ]
            for row in found
        ]
        say(table(["policy", "then", "overdue", "entries", "logs"], rows))
        for row in found:
            if not row["equal"]:
                hint(f"{row['policy']}, {row['overdue']}: simulated {row['simulated']}\n  live {row['live']}")
    if not all(row["equal"] for row in found):
        ctx.exit(EXIT_FAILED)
