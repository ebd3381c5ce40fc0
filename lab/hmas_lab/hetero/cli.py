"""`hmas-lab hetero`: HeteroServe's Table 1, this simulation's figures beside the paper's."""

from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.cli.output import hint, json_option, say, say_json, table
from hmas_lab.hetero.study import PROBE_REQUESTS, SCHEDULERS, Cell, run


@click.command()
@click.option("--seeds", type=click.IntRange(1, 100), default=5, show_default=True, help="Runs per scheduler, seeds 0 and up.")
@click.option("--requests", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True, help="Requests per run.")
@click.option(
    "--load",
    "load_factor",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Load over this cluster's saturation.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Arrivals per second instead; the paper's are 49.8.")
@click.option("--scheduler", "schedulers", multiple=True, type=click.Choice(SCHEDULERS), help="Only these; may be repeated.")
@click.option(
    "--probe-requests",
    type=click.IntRange(8, 1_000_000),
    default=PROBE_REQUESTS,
    show_default=True,
    help="Length of the queue by which the saturation of a device is measured.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the whole result here as JSON.")
@json_option
def hetero(as_json: bool, out: Path | None, schedulers: tuple[str, ...], **options: Any) -> None:
    """Simulate HeteroServe's cluster: 2 H100, 4 A100, 2 L40S, a 13B model, TTFT within 500 ms.

    Uniform dispatch gives every device the same requests and the same batch; queue feedback sends them where they wait least.
    """

    def tell(cell: Cell) -> None:
        hint(f"{cell.scheduler}, seed {cell.seed}: {cell.tokens_per_s:,.0f} tokens/s, {cell.slo_attainment:.1%} in time")

    result = run(schedulers=schedulers or SCHEDULERS, on_cell=tell, **options)
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    if as_json:
        say_json(result)
        return
    say(
        f"{result['rate_rps']:.1f} requests/s, {result['load_factor']:.2f} of this cluster's saturation of {result['saturation_rps']:.1f}; "
        f"{result['seeds']} seeds of {result['requests']} requests. In brackets the paper's figures, at its saturation of "
        f"{result['paper_rate_rps']} requests/s."
    )
    rows = [
        [
            row["scheduler"],
            _beside(row, "tokens_per_s", ",.0f"),
            _beside(row, "slo_attainment", ".1%"),
            _beside(row, "ttft_ms_p95", ",.0f"),
        ]
        for row in result["rows"]
    ]
    say(table(["scheduler", "tokens/s", "TTFT within 500 ms", "P95 TTFT, ms"], rows))


def _beside(row: dict[str, Any], field: str, form: str) -> str:
    """Our figure, and the paper's in brackets where it has one."""
    paper = row.get("paper")
    return format(row[field], form) + (f" ({format(paper[field], form)})" if paper else "")
