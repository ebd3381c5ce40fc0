"""`hmas-lab demo-vllm`: the comparison on a real vLLM on this machine's CPU."""

import json
import os
from pathlib import Path

import click
import msgspec

from hmas.cli.output import exit_where_broken, hint, say
from hmas.demo.decisions import decision_sentences
from hmas.demo.outcome import OURS
from hmas.loadgen.arrivals import ArrivalSpec
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.traces import Trace, TraceRow, read_trace
from hmas.loadgen.workload import WorkloadSpec, generate
from hmas_lab.demo_vllm.load import KIND
from hmas_lab.demo_vllm.outcome import document, headline, text_table
from hmas_lab.demo_vllm.settings import FieldSettings
from hmas_lab.demo_vllm.study import FieldStudy
from hmas_lab.vllm_engine import VllmServer

AZURE = "arrivals/azure_llm_2023_conv.csv.gz"
OWN_ROWS = 12_000
PACE = {"meta_period_s": 4.0, "meta_dwell_s": 10.0, "meta_rollback_window_s": 6.0, "qos_long_window_s": 20.0, "qos_short_window_s": 3.0}
"""The agents' clocks, faster by about what the runs are shorter than a service's day."""


@click.command("demo-vllm")
@click.option("--vllm-python", type=click.Path(path_type=Path), required=True, help="Python of the environment that holds vLLM.")
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Model directory (scripts/build_tiny_model.py).")
@click.option("--trace", type=click.Path(path_type=Path), help=f"Trace with times and lengths; default $HMAS_DATA_DIR/{AZURE}, else drawn.")
@click.option(
    "--blocks", type=click.IntRange(1, 20), default=FieldSettings().blocks, show_default=True, help="Repetitions of the four runs."
)
@click.option("--load", type=click.FloatRange(0.1, 2.0), default=FieldSettings().load, show_default=True, help="Mean rate over capacity.")
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Importances, task types and texts follow from it."
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build"), show_default=True, help="Folder for results."
)
@click.pass_context
def demo_vllm(
    ctx: click.Context, *, vllm_python: Path, model: Path, trace: Path | None, blocks: int, load: float, seed: int, out: Path
) -> None:
    """Compare H-MAS with three baselines on a real vLLM, on real arrivals.

    Starts vLLM on this CPU, measures its capacity, derives rate and SLOs from it, tunes the baselines' windows live, then repeats the four
    runs on the same arrivals, every second time in reverse order. Runs under which the machine stood still are repeated. Nothing else
    should run on the machine meanwhile.

    Exit code 0 when all held, 1 when anything broke.

    \b
    Example:
      hmas-lab demo-vllm --vllm-python build/vllm/bin/python --model build/tiny-model --blocks 5
    """  # noqa: D301 - click reads \b as "do not rewrap"
    settings = FieldSettings(blocks=blocks, load=load, seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    rows = read_trace(trace) if trace else default_trace()
    study = FieldStudy(settings, VllmServer(python=vllm_python, model=model), rows, out / "demo-vllm", {"agents": dict(PACE)})
    result = study.run()
    (out / "demo-vllm.json").write_text(json.dumps(document(result), indent=1) + "\n", encoding="utf-8")
    say(text_table(result))
    say("")
    say(f"Decisions of {OURS} in the last block (each of them is in {out / 'demo-vllm.json'}):")
    for sentence in decision_sentences(result.blocks[-1].runs[OURS]):
        say("  " + sentence)
    say("")
    say(headline(result))
    hint(f"figures: {out / 'demo-vllm.json'}   {msgspec.json.encode(round(result.elapsed_s)).decode()} s in all")
    exit_where_broken(ctx, result.broken)


def default_trace() -> Trace:
    """The real Azure conversation trace where HMAS_DATA_DIR has it, else requests of the same shape drawn from the project's own data."""
    folder = os.environ.get("HMAS_DATA_DIR")
    if folder and (Path(folder) / AZURE).is_file():
        return read_trace(Path(folder) / AZURE)
    mixture, prompts = load_mixture()
    drawn = generate(WorkloadSpec(arrivals=ArrivalSpec(mean_rps=6.0, duration_s=OWN_ROWS / 6.0, process="poisson")), mixture, prompts)
    rows = [TraceRow(at_s=a.at_s, prompt_tokens=a.prompt_tokens, output_tokens=a.output_tokens) for a in drawn if a.kind == KIND]
    return Trace(source="datasets/mixed.json", format="azure", rows=rows)
