"""`hmas-lab intents`: a hundred written intentions with known answers, asked of any endpoint."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.agents.meta.selectors.llm_endpoint import ChatEndpoint
from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.cli.values import Duration
from hmas.controller.runtime.clock import SystemClock
from hmas_lab.intents.cases import read_cases
from hmas_lab.intents.evaluation import evaluate, outcome_table, summary
from hmas_lab.onvllm.cli import page_option
from hmas_lab.page import write_page
from hmas_lab.result_files import write_result
from hmas_lab.tables import markdown
from hmas_lab.vllm_engine import VllmServer, running_vllm

KIND = "intents"
# A small model goes on with blanks for ever where the grammar allows them. An operator's vLLM keeps the prefix that all questions share.
FLAGS = ("--structured-outputs-config", '{"disable_any_whitespace": true, "backend": "xgrammar"}', "--enable-prefix-caching")


@click.command()
@click.option("--base-url", help="OpenAI-compatible server to ask.")
@click.option("--model", default="", help="Name of the model there; the server's own by default.")
@click.option("--key-env", default="", help="Environment variable that holds the key towards it.")
@click.option("--vllm-python", type=click.Path(path_type=Path), help="Start a vLLM: interpreter of the environment that holds it.")
@click.option("--weights", type=click.Path(path_type=Path), help="Model directory for it (scripts/build_smollm2.py).")
@click.option("--timeout", "timeout_s", type=Duration(), default="120s", show_default=True, help="Time for one question and its answer.")
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
    if bool(options["base_url"]) == bool(options["vllm_python"]) or bool(options["vllm_python"]) != bool(options["weights"]):
        raise click.UsageError("give --base-url, or --vllm-python and --weights")
    if options["base_url"]:
        document = _asked(options["base_url"], options["model"], options)
    else:
        document = asyncio.run(_on_vllm(VllmServer(python=options["vllm_python"], model=options["weights"], flags=FLAGS), out, options))
    write_result(out / f"{KIND}.json", document)
    found = outcome_table(document)
    say_json(document) if as_json else say(f"{found.title}\n{table(found.head, found.rows)}")
    hint(f"written to {out / f'{KIND}.json'}")


async def _on_vllm(server: VllmServer, out: Path, options: dict[str, Any]) -> dict[str, Any]:
    folder = out / f"{KIND}-vllm"
    folder.mkdir(parents=True, exist_ok=True)
    name = server.model.name
    async with running_vllm(server, folder.absolute(), name) as url:
        return await asyncio.to_thread(_asked, url, name, options)


def _asked(url: str, model: str, options: dict[str, Any]) -> dict[str, Any]:
    key = os.environ.get(options["key_env"], "") if options["key_env"] else ""
    endpoint = ChatEndpoint(url, key, timeout_s=options["timeout_s"], setting="--base-url")
    cases = read_cases()
    verdicts = evaluate(cases, endpoint.ask, SystemClock(), model=model)
    return {"version": 1, "model": model or url, "summary": summary(cases, verdicts), "answers": msgspec.to_builtins(verdicts)}
