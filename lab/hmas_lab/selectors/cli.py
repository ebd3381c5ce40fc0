"""`hmas-lab selectors`: a language model as meta's selector, beside the others, at the same moments of simulated loads."""

from pathlib import Path
from typing import Any

import click

from hmas.agents.meta.selectors.llm_endpoint import ChatEndpoint
from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.controller.runtime.clock import SystemClock
from hmas.controller.scheduling.policies.registry import DEFAULT_POLICY
from hmas_lab.meta.draws import draw
from hmas_lab.onvllm.cli import page_option
from hmas_lab.onvllm.endpoint import NAMELESS, ask_model, check_endpoint, endpoint_options
from hmas_lab.page import write_page
from hmas_lab.result_files import write_result
from hmas_lab.selectors.answers import ask_each, document_of
from hmas_lab.selectors.moments import Moment, moments
from hmas_lab.selectors.tables import body, scores_table

KIND = "selectors"
SEED = 9_000_000
"""No model was trained on workloads of these seeds, and no other study reports them."""
STARTS = ("fcfs", "sjf", DEFAULT_POLICY)
EACH = 2
"""Moments of a run."""


@click.command()
@endpoint_options
@click.option("--workloads", type=click.IntRange(1, 1000), default=12, show_default=True, help="Drawn and simulated, under each policy.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/lab"), show_default=True, help="Results.")
@page_option
@json_option
def selectors(*, page: Path | None, out: Path, as_json: bool, workloads: int, **options: Any) -> None:
    """Ask a language model for the policy at moments of simulated loads, and count how often it is right.

    At the same moments the rule map and the twin are asked. "Right in the end" is a policy that gives as many good requests over the whole
    load as the best one, less one in a hundred.

    \b
    Examples:
      hmas-lab selectors --base-url http://127.0.0.1:8000 --model Qwen3-8B
      hmas-lab selectors --vllm-python build/vllm/bin/python --weights build/smollm2
      hmas-lab selectors --page docs/meta.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out, {KIND: body}, command='hmas-lab selectors'))}")
        return
    check_endpoint(options)
    found: list[Moment] = []
    for number in range(workloads):
        found += moments([draw(number, SEED)], STARTS, EACH)
        hint(f"workload {number + 1} of {workloads}: {found[-1].good}")

    def study(endpoint: ChatEndpoint, model: str) -> dict[str, Any]:
        return document_of(found, ask_each(found, endpoint.ask, SystemClock(), model), model or NAMELESS)

    document = ask_model(options, out / f"{KIND}-vllm", study)
    write_result(out / f"{KIND}.json", document)
    shown = scores_table(document)
    say_json(document) if as_json else say(f"{shown.title}\n{table(shown.head, shown.rows)}")
    hint(f"written to {out / f'{KIND}.json'}")
