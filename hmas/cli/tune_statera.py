"""`hmas tune statera`: identifies an engine and derives the gains of statera's outer loop."""

import os
from pathlib import Path

import click
import msgspec
import uvloop

from hmas.agents.statera.tuning import EVERY, Tuning, read_tuning, write_tuning
from hmas.cli.output import check_writable, example, hint, json_option, say, say_json, table
from hmas.cli.profile import Concurrencies
from hmas.cli.values import Number
from hmas.controller.config.schema import AgentsConfig, SchedulerConfig
from hmas.engines.sim.profile import load_profile
from hmas.profiling.ladder import LEAST_RUNGS, Identified, Load, Rung, identify, live, simulated
from hmas.profiling.target import look_at


@click.command(
    "statera",
    epilog=example(
        "hmas tune statera http://127.0.0.1:8000 --tpot-ms 60 --out statera.json",
        "hmas tune statera a100-qwen3-8b --ladder 1,8,32,96 --tpot-ms 40",
    ),
)
@click.argument("engine")
@click.option("--name", default=EVERY, show_default=True, help="Instance that the gains are for, as the configuration names it; * for all.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("statera.json"), show_default=True, help="Tuning file."
)
@click.option("--tpot-ms", type=Number(0), default=0.0, help="TPOT target at which the gains hold; default: the ladder's top.")
@click.option(
    "--ladder", type=Concurrencies(LEAST_RUNGS), default="1,2,4,8,16,32", show_default=True, help="Requests at once, rung by rung."
)
@click.option("--prompt", "prompt_tokens", type=click.IntRange(8, 100_000), default=256, show_default=True, help="Prompt tokens, mean.")
@click.option("--output", "output_tokens", type=click.IntRange(8, 10_000), default=64, show_default=True, help="Output tokens, mean.")
@click.option("--rounds", type=click.IntRange(2, 100), default=4, show_default=True, help="Requests of each client.")
@click.option("--max-seconds", type=Number(1, 3600), default=120.0, show_default=True, help="No rung begins after this.")
@click.option("--period", type=Number(0.05, 60), default=AgentsConfig().statera_period_s, show_default=True, help="Its action period.")
@click.option("--tick", type=Number(0.01, 60), default=SchedulerConfig().tick_s, show_default=True, help="Seconds between views.")
@click.option("--model", default="", help="Model to ask for; default: the first that the address lists.")
@click.option("--api-key-env", default="HMAS_API_KEY", show_default=True, help="Environment variable with the engine's API key.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Prompts and lengths follow from it.")
@json_option
def tune_statera(
    *,
    engine: str,
    name: str,
    out: Path,
    tpot_ms: float,
    ladder: tuple[int, ...],
    prompt_tokens: int,
    output_tokens: int,
    rounds: int,
    max_seconds: float,
    period: float,
    tick: float,
    model: str,
    api_key_env: str,
    seed: int,
    as_json: bool,
) -> None:
    """Measure TPOT over concurrency on ENGINE and derive statera's gains.

    ENGINE is the address of an OpenAI-compatible engine that streams and serves no other requests meanwhile; or the name or file of a
    profile, which is simulated. Name the written file in the configuration as `agents.statera_tuning`.
    """
    check_writable(out)
    before = read_tuning(out) if out.is_file() else Tuning()
    load = Load(prompt_tokens=prompt_tokens, output_tokens=output_tokens, rounds=rounds, seed=seed)
    if engine.startswith(("http://", "https://")):
        key = os.environ.get(api_key_env, "")
        target = uvloop.run(look_at(engine.rstrip("/").removesuffix("/v1"), model=model, api_key=key))
        hint(f"{target.url}: {target.kind} {target.version}, model {target.model}; {max_seconds:g} s at most")
        rungs = uvloop.run(live(target, ladder, load, api_key=key, max_seconds=max_seconds, on_rung=_tell))
    else:
        rungs = simulated(load_profile(engine), ladder, load)
    found = identify(rungs, tpot_ms=tpot_ms, period_s=period, tick_s=tick)
    # Printed first, so that the measurements are not lost if the file cannot be written.
    if as_json:
        say_json(msgspec.to_builtins(found))
    else:
        say(_report(found))
    write_tuning(out, before.with_engine(name, found.plant, found.gains))
    hint(f"written to {out}; name it in the configuration: agents.statera_tuning: {out}")


def _tell(rung: Rung) -> None:
    hint(f"{rung.n} at once: TPOT {rung.tpot_ms:.1f} ms, {rung.rps:.2f} requests/s")


def _report(found: Identified) -> str:
    plant, gains = found.plant, found.gains
    ladder = [(rung.n, f"{rung.tpot_ms:.2f}", f"{rung.service_s:.2f}", f"{rung.rps:.2f}", rung.answers) for rung in found.rungs]
    rows: list[tuple[str, object]] = [
        ("tpot(n), ms", f"{plant.base_ms:.3g} + {plant.slope_ms:.3g} n, off by {found.misfit:.0%} at most"),
        ("elasticity", f"{plant.elasticity:.2f} at n = {plant.n_run:g}"),
        ("delay, s", f"{plant.delay_s:.2f}; memory {plant.memory_s:.1f}"),
        ("rise, fall per s", f"{gains.rise_per_s:g}, {gains.fall_per_s:g}"),
        ("trim per s", f"{gains.trim_per_s:g}"),
        ("lead, s", f"{gains.lead_s:g}"),
        ("margins", f"{found.margins.phase_deg:.0f} degrees, x{found.margins.gain:.2f}"),
        ("margins of the defaults", f"{found.default_margins.phase_deg:.0f} degrees, x{found.default_margins.gain:.2f}"),
    ]
    return f"{table(['at once', 'TPOT ms', 'service s', 'requests/s', 'answers'], ladder)}\n\n{table(['what', 'found'], rows)}"
