"""`hmas-lab overload`: goodput from half of capacity to three times of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.controller.core.errors import ConfigError
from hmas.planning.backends import on_cores
from hmas.planning.charts import Line, lines
from hmas.planning.report import write_json
from hmas_lab.overload.study import OverloadSettings, Sweep

DEFAULT = OverloadSettings()
NAME = "overload"


@click.command()
@click.option("--fleet", default=DEFAULT.fleet, show_default=True, help="Engines, as `hmas simulate` takes them.")
@click.option("--loads", default=",".join(f"{load:g}" for load in DEFAULT.loads), show_default=True, help="Rates over capacity, rising.")
@click.option("--seeds", type=click.IntRange(1, 100), default=DEFAULT.seeds, show_default=True, help="Workloads at each load.")
@click.option("--span", type=click.FloatRange(20, 86_400), default=DEFAULT.span_s, show_default=True, help="Seconds of arrivals.")
@click.option("--warmup", type=click.FloatRange(0), default=DEFAULT.warmup_s, show_default=True, help="Seconds of them not scored.")
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/overload"), show_default=True, help="Results.")
@json_option
def overload(*, loads: str, span: float, warmup: float, workers: int, out: Path, as_json: bool, **options: Any) -> None:
    """Sweep the load past saturation, in simulation, and hold what clients were told against what happened.

    Capacity is what the engine completes of a backlog by itself. Every regime gets the same arrivals; the windows of first come first
    served are tuned anew at each load, on a workload that is not scored. The same options give the same files.

    \b
    Examples:
      hmas-lab overload
      hmas-lab overload --fleet 2xa100-qwen3-8b --loads 1,2,4 --seeds 5 --workers 2
    """  # noqa: D301 - click reads \b as "do not rewrap"
    chosen = {**msgspec.to_builtins(DEFAULT), **options, "loads": _loads(loads), "span_s": span, "warmup_s": warmup}
    try:
        settings = msgspec.convert(chosen, OverloadSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error
    document = Sweep(settings, on_cores(workers), hint).run()
    write_json(out / f"{NAME}.json", document)
    _plot(out / f"{NAME}.svg", document)
    hint(f"written to {out / NAME}.json and .svg")
    if as_json:
        say_json(document)
    else:
        say(text_of(document))


def _loads(text: str) -> list[float]:
    try:
        loads = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--loads is {text!r}; allowed: numbers with commas between, such as 0.5,1,2") from None
    if loads != sorted(set(loads)):
        raise ConfigError(f"--loads is {text!r}; allowed: rising numbers")
    return loads


def text_of(document: Mapping[str, Any]) -> str:
    """The sweep for a terminal: goodput by load and regime, how flat it is, and how true Retry-After was."""
    regimes = list(document["regimes"])
    by = {(point["load"], point["regime"]): point for point in document["points"]}
    loads = document["settings"]["loads"]
    flat = document["flatness"].items()
    parts = [
        f"goodput, requests/s; capacity is {document['capacity_rps']:.2f}",
        table(["load", *regimes], [(f"{load:g}", *(f"{by[load, name]['goodput_rps']:.2f}" for name in regimes)) for load in loads]),
        "tokens/s of requests that met their targets",
        table(["load", *regimes], [(f"{load:g}", *(f"{by[load, name]['good_tps']:.0f}" for name in regimes)) for load in loads]),
        "past the peak",
        table(
            ["regime", "goodput: peak", "at the highest load", "least after the peak", "in tokens: at the highest load", "least"],
            [(name, f"{one['goodput_rps']['peak']:.2f}", *_shares(one["goodput_rps"]), *_shares(one["good_tps"])) for name, one in flat],
        ),
        "Retry-After against the real wait, loads above 1, waits of 1 to 60 s",
        table(
            ["regime", "requests", "median wait s", "median error s", "median error over wait"],
            [
                (name, one["requests"], f"{one['median_wait_s']:.1f}", f"{one['median_error_s']:.1f}", f"{one['median_relative']:.0%}")
                for name, one in document["retry_after"].items()
            ],
        ),
    ]
    return "\n\n".join(parts)


def _shares(one: Mapping[str, float]) -> tuple[str, str]:
    return f"{one['last_share']:.0%}", f"{one['least_share_after_peak']:.0%}"


def _plot(path: Path, document: Mapping[str, Any]) -> None:
    drawn = [
        Line(name, [(point["load"], point["goodput_rps"]) for point in document["points"] if point["regime"] == name])
        for name in document["regimes"]
    ]
    lines(path, drawn, x_label="arrival rate over capacity", y_label="goodput, requests/s", mark=document["capacity_rps"])
