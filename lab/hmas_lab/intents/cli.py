"""`hmas-lab intents`: a hundred written intentions with known answers, asked of any endpoint."""

from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.agents.meta.selectors.llm_endpoint import ChatEndpoint
from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.controller.runtime.clock import SystemClock
from hmas_lab.intents.cases import read_cases
from hmas_lab.intents.evaluation import evaluate, outcome_table, summary
from hmas_lab.onvllm.cli import page_option
from hmas_lab.onvllm.endpoint import NAMELESS, ask_model, check_endpoint, endpoint_options
from hmas_lab.page import write_page
from hmas_lab.result_files import write_result
from hmas_lab.tables import markdown

KIND = "intents"


@click.command()
@endpoint_options
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/lab"), show_default=True, help="Results.")
@page_option
@json_option
def intents(*, page: Path | None, out: Path, as_json: bool, **options: Any) -> None:
    """Ask a language model about a hundred written intentions, and count what is right, refused, and wrong but accepted.

    \b
    Examples:
      hmas-lab intents --base-url http://127.0.0.1:8000 --model Qwen3-8B
      hmas-lab intents --vllm-python build/vllm/bin/python --weights build/smollm2
      hmas-lab intents --page docs/intents.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        written = write_page(page, out, {KIND: lambda document: markdown(outcome_table(document))}, command="hmas-lab intents")
        say(f"{page}: written from {out}: {', '.join(written)}")
        return
    check_endpoint(options)
    document = ask_model(options, out / f"{KIND}-vllm", _asked)
    write_result(out / f"{KIND}.json", document)
    found = outcome_table(document)
    say_json(document) if as_json else say(f"{found.title}\n{table(found.head, found.rows)}")
    hint(f"written to {out / f'{KIND}.json'}")


def _asked(endpoint: ChatEndpoint, model: str) -> dict[str, Any]:
    cases = read_cases()
    verdicts = evaluate(cases, endpoint.ask, SystemClock(), model=model)
    return {"version": 1, "model": model or NAMELESS, "summary": summary(cases, verdicts), "answers": msgspec.to_builtins(verdicts)}
