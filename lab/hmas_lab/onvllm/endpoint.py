"""A language model that a study asks: at an endpoint that runs already, or on a vLLM that the study starts."""

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from hmas.agents.meta.selectors.llm_endpoint import ChatEndpoint
from hmas.cli.values import Duration
from hmas_lab.onvllm.cli import Decorator
from hmas_lab.vllm_engine import VllmServer, running_vllm

# A small model goes on with blanks for ever where the grammar allows them. An operator's vLLM keeps the prefix that all questions share.
FLAGS = ("--structured-outputs-config", '{"disable_any_whitespace": true, "backend": "xgrammar"}', "--enable-prefix-caching")
NAMELESS = "the server's own model"
"""A document's word for a model that was not named."""
PATH = click.Path(path_type=Path)
Found = TypeVar("Found")
Study = Callable[[ChatEndpoint, str], Found]
"""Asks the endpoint, with the model's name there, which may be empty for the server's own; it blocks."""


def endpoint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which model is asked; `ask_model` takes them."""
    options: list[Decorator] = [
        click.option("--base-url", help="OpenAI-compatible server to ask."),
        click.option("--model", default="", help="Name of the model there; the server's own by default."),
        click.option("--key-env", default="", help="Environment variable that holds the key towards it."),
        click.option("--vllm-python", type=PATH, help="Start a vLLM: interpreter of the environment that holds it."),
        click.option("--weights", type=PATH, help="Model directory for it (scripts/build_smollm2.py)."),
        click.option(
            "--timeout", "timeout_s", type=Duration(), default="120s", show_default=True, help="Time for a question and its answer."
        ),
    ]
    return reduce(lambda decorated, decorate: decorate(decorated), reversed(options), command)


def check_endpoint(options: Mapping[str, Any]) -> None:
    """Whether the options name one model.

    Raises:
        click.UsageError: They do not.
    """
    if bool(options["base_url"]) == bool(options["vllm_python"]) or bool(options["vllm_python"]) != bool(options["weights"]):
        raise click.UsageError("give --base-url, or --vllm-python and --weights")


def ask_model(options: Mapping[str, Any], folder: Path, study: Study[Found]) -> Found:
    """Makes a study that asks a model.

    Args:
        options: Of `endpoint_options`.
        folder: A vLLM's log lies here.
        study: See `Study`.

    Raises:
        DemoBroken: vLLM does not start.
        ConfigError: The endpoint's address is not valid.
    """
    if options["base_url"]:
        return study(_endpoint(options["base_url"], options), options["model"])
    folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_on_vllm(options, folder.absolute(), study))


async def _on_vllm(options: Mapping[str, Any], folder: Path, study: Study[Found]) -> Found:
    server = VllmServer(python=options["vllm_python"], model=options["weights"], flags=FLAGS)
    name = server.model.name
    async with running_vllm(server, folder, name) as url:
        return await asyncio.to_thread(study, _endpoint(url, options), name)


def _endpoint(url: str, options: Mapping[str, Any]) -> ChatEndpoint:
    key = os.environ.get(options["key_env"], "") if options["key_env"] else ""
    return ChatEndpoint(url, key, timeout_s=options["timeout_s"], setting="--base-url")
