"""`hmas replay`: replays a real trace against any OpenAI-compatible address."""

import os
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from hmas.cli.output import EXIT_FAILED, check_writable, complain, example, hint, json_option, say, say_json
from hmas.cli.values import Number
from hmas.controller.runtime.clock import SystemClock
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.process import LengthChannel, LoadSpec, Progress, run_process, write_plan
from hmas.loadgen.replaying import ReplaySpec, arrivals_from_trace
from hmas.loadgen.results import Result, RunSummary, read_results
from hmas.loadgen.score import score
from hmas.loadgen.traces import FORMATS, Trace, read_trace
from hmas.loadgen.workload import Arrival
from hmas.planning.tables import class_table, score_table
from hmas.profiling.target import model_card

PROGRESS_EVERY_S = 5.0


LENGTHS_HELP = "How the engine is told the recorded output length; auto: sim for embedded engines, else none."


@click.command(
    epilog=example(
        "hmas replay --trace AzureLLMInferenceTrace_conv.csv --limit 500 --rate 4",
        "hmas replay --trace conversation_trace.jsonl --speed 2 --duration 120 --url http://127.0.0.1:8000 --out results.jsonl",
        "hmas replay --trace prompts.jsonl --rate 2 --json",
    )
)
@click.option("--trace", "path", required=True, type=click.Path(path_type=Path), help="Azure CSV, Mooncake JSONL, or a prompt file.")
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="Base address, without /v1: a gateway or an engine.")
@click.option("--model", default="", help="Model to ask for; default: the first that the address lists.")
@click.option("--format", "format_name", type=click.Choice(FORMATS), help="How to read the file; default: found from its first rows.")
@click.option("--rate", type=Number(0, min_open=True), help="Scale the times to this mean rate, requests per second.")
@click.option("--speed", type=Number(0, min_open=True), help="Replay this many times faster than recorded.")
@click.option("--limit", type=click.IntRange(0), default=0, help="Take the first so many rows; 0 for all.")
@click.option("--duration", type=Number(0), default=0.0, help="Only what arrives within so many seconds; 0 for all.")
@click.option("--skip-bad", is_flag=True, help="Leave bad rows out and count them instead of stopping at the first.")
@click.option("--kind", default="", help="Kind of traffic whose task types and tenants stand in: conv or code; default: by the outputs.")
@click.option("--slo-scale", type=Number(0.001, 1000), default=1.0, show_default=True, help="Stretches the targets of Table 6.")
@click.option("--context", type=click.IntRange(0), help="Cut requests to this many tokens; default: what the address says; 0: never.")
@click.option("--length-channel", type=click.Choice(["auto", "sim", "vllm", "none"]), default="auto", show_default=True, help=LENGTHS_HELP)
@click.option("--api-key-env", default="HMAS_API_KEY", show_default=True, help="Environment variable with the API key.")
@click.option("--warmup", type=Number(0), default=0.0, help="Seconds at the start that are not scored.")
@click.option("--drain", type=Number(0.1), default=60.0, show_default=True, help="Seconds to wait for answers after the end.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Texts, targets and drawn times follow from it.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write one JSON line per request here.")
@json_option
@click.pass_context
def replay(ctx: click.Context, /, **options: Any) -> None:
    """Replay a trace and print the results as measured by its clients.

    Requests are sent at their times, regardless of earlier requests (open loop). A row that has only lengths gets a text of that length.
    Each request declares its SLO by H-MAS Table 6 and Eq. 14.

    Exit code 1 if a request was lost: it got no answer, or one that broke off.
    """
    if options["out"] is not None:
        check_writable(options["out"])
    trace = read_trace(options["path"], format_name=options["format_name"], limit=options["limit"], skip_bad=options["skip_bad"])
    _tell_trace(trace)
    key = os.environ.get(options["api_key_env"], "")
    card = uvloop.run(model_card(options["url"].rstrip("/"), model=options["model"], api_key=key))
    context = options["context"] if options["context"] is not None else int(card.get("max_model_len") or 0)
    spec = ReplaySpec(
        seed=options["seed"],
        rate_rps=options["rate"] or 0.0,
        speed=options["speed"] or 1.0,
        duration_s=options["duration"],
        kind=options["kind"],
        slo_scale=options["slo_scale"],
        context_tokens=context,
    )
    arrivals, cut = arrivals_from_trace(trace, spec, *load_mixture())
    if options["warmup"] > arrivals[-1].at_s:
        raise click.UsageError(f"--warmup {options['warmup']:g}: allowed: at most {arrivals[-1].at_s:.12g} s, when the last request comes")
    if cut:
        hint(f"{cut} of {len(arrivals)} requests are cut to the context of {context} tokens")
    tenants = {arrival.tenant for arrival in arrivals}
    load = LoadSpec(
        url=options["url"].rstrip("/"),
        model=card["id"],
        api_keys=dict.fromkeys(tenants, key) if key else {},
        length_channel=_channel(options["length_channel"], card),
        drain_s=options["drain"],
    )
    results, summary = _run(arrivals, load, options["out"])
    _report(ctx, trace, arrivals, results, summary, warmup_s=options["warmup"], as_json=options["as_json"])


def _tell_trace(trace: Trace) -> None:
    hint(f"{trace.source}: {len(trace.rows)} requests read as {trace.format}")
    if trace.reordered:
        hint(f"{trace.reordered} rows stood later in the file than their time and are put in order")
    if trace.skipped:
        hint(f"{trace.skipped} bad rows left out, such as {trace.complaints[0]}")


def _channel(wanted: str, card: dict[str, Any]) -> LengthChannel:
    if wanted == "auto":
        return "sim" if card.get("owned_by") == "hmas" else "none"
    channel: LengthChannel = msgspec.convert(wanted, LengthChannel)
    return channel


def _run(arrivals: list[Arrival], load: LoadSpec, out: Path | None) -> tuple[list[Result], RunSummary]:
    clock = SystemClock()
    told_s = 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal told_s
        if clock.now_s() - told_s >= PROGRESS_EVERY_S:
            told_s = clock.now_s()
            left_s = max(0.0, arrivals[-1].at_s - progress.elapsed_s)
            hint(
                f"{progress.elapsed_s:6.1f} s: {progress.sent} of {len(arrivals)} sent, {progress.ended} ended, "
                f"{progress.good} good; arrivals end in {left_s:.0f} s"
            )

    with tempfile.TemporaryDirectory(prefix="hmas-replay-") as folder:
        plan, results = Path(folder) / "plan.jsonl", out or Path(folder) / "results.jsonl"
        write_plan(plan, arrivals, load, results.resolve())
        summary = uvloop.run(run_process(plan, on_progress))
        return read_results(results), summary


def _span_s(arrivals: list[Arrival], elapsed_s: float) -> float:
    """The time in which requests arrived: up to the last one and a mean gap. Of one, or of those at one time, that of the whole run."""
    last_s = arrivals[-1].at_s
    return last_s * len(arrivals) / (len(arrivals) - 1) if last_s > 0.0 and len(arrivals) > 1 else elapsed_s


def _report(
    ctx: click.Context, trace: Trace, arrivals: list[Arrival], results: list[Result], summary: RunSummary, *, warmup_s: float, as_json: bool
) -> None:
    figures = score(results, warmup_s=warmup_s, arrivals_end_s=_span_s(arrivals, summary.elapsed_s), run_end_s=summary.elapsed_s)
    if as_json:
        say_json(
            {
                "trace": trace.source,
                "skipped": trace.skipped,
                **msgspec.to_builtins(figures),
                "all_outcomes": summary.outcomes,
                "max_gap_s": summary.max_gap_s,
                "noisy": summary.noisy,
            }
        )
    else:
        say(score_table(figures))
        say("")
        say(class_table(figures))
    if summary.noisy:
        complain(f"the machine stood still for {summary.max_gap_s:.2f} s; the latencies are not to be trusted")
    lost = summary.outcomes["lost"]
    if lost:
        first = next(r for r in results if r.outcome == "lost")
        complain(f"{lost} requests were lost, the first: number {first.index}, {first.detail}")
        ctx.exit(EXIT_FAILED)
