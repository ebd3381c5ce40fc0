"""`hmas-lab frontdoor`: what clients really send, through the product and through the same gateway with nothing switched on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.cli.output import EXIT_FAILED, complain, hint, json_option, say, say_json, table
from hmas.controller.runtime.clock import SystemClock
from hmas.loadgen.dataset import load_mixture
from hmas_lab.as_it_comes import cancel_on_sigterm
from hmas_lab.frontdoor.arms import arm_names
from hmas_lab.frontdoor.load import DoorLoad
from hmas_lab.frontdoor.measurement import Measurement
from hmas_lab.frontdoor.runs import Runs
from hmas_lab.frontdoor.settings import ARMS, FULL, MODEL_LEN, PRODUCT, QUICK, VLLM, DoorSettings
from hmas_lab.frontdoor.tables import all_tables, body
from hmas_lab.onvllm.cli import page_option
from hmas_lab.page import write_page
from hmas_lab.questions import data_dir, read_questions
from hmas_lab.result_files import write_result
from hmas_lab.simulated_rows import read_names
from hmas_lab.vllm_engine import WHOLE_PROMPTS, VllmServer, running_vllm

SIM, ON_VLLM = "frontdoor", "frontdoor-vllm"
KINDS = (SIM, ON_VLLM, f"{SIM}-arms", f"{ON_VLLM}-arms", f"{SIM}-forms", f"{ON_VLLM}-forms")
"""Kinds of result: names of their files, and of the page's markers. Those of chosen arms or bodies leave the others as they are."""
VLLM_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", *WHOLE_PROMPTS)


@click.command()
@click.option("--quick", is_flag=True, help="Three minutes: two arms, embedded engines; fails below 0.97 of pass-through at 0.1 and 0.5.")
@click.option("--vllm-python", type=click.Path(path_type=Path), help="Measure a real vLLM: interpreter of the environment that holds it.")
@click.option("--model", type=click.Path(path_type=Path), help="Model directory for it (scripts/build_smollm2.py).")
@click.option(
    "--seconds", type=click.FloatRange(4, 600), help="Length of the arrivals of a run; default: 36, 16 with --quick, 60 on a real vLLM."
)
@click.option("--warmup", "warmup_s", type=click.FloatRange(0, 600), help="Requests before this are not scored; default: 0 s.")
@click.option("--repeats", type=click.IntRange(1, 20), help="Runs of each load, on other arrivals each time.")
@click.option("--loads", help="Rates over capacity, with commas between.")
@click.option("--forms", help=f"Kinds of bodies with commas between, of {', '.join(FULL.forms)}.")
@click.option("--arms", help=f"Arms with commas between, {PRODUCT} among them; default: {', '.join(ARMS)}.")
@click.option(
    "--capacity", "capacity_rps", type=click.FloatRange(0.05, 1000), help="Good requests/s that loads refer to; default: measured."
)
@click.option("--caps", help="Windows tried for fcfs-cap-shed, with commas between; one is not tried, but taken.")
@click.option("--budget", type=click.FloatRange(1, 600), help="Minutes after which no further run begins; default: 20.")
@click.option("--apart", is_flag=True, help="One arm at a time instead of side by side.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Requests and times follow from it.")
@page_option
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("build/bench"), show_default=True, help="Results.")
@json_option
@click.pass_context
def frontdoor(ctx: click.Context, /, *, page: Path | None, out: Path, as_json: bool, **options: Any) -> None:
    """Send real bodies through three arms and compare them cell by cell.

    The arms are the same gateway in pass-through (first come first served, no agents, no fence, no guard), `hmas up --no-agents`, and
    `hmas up` as it comes. A cell is a kind of body, with `max_tokens` or without, with declared targets or without. Requests that declare
    none are judged by a TTFT of 2 s and a TPOT of 60 ms.

    Further arms may be named: the product without one of its agents, under the preset `paper` or with a start that does not suit the load,
    and first come first served with the best of a few windows and deadline shedding (fcfs-cap-shed).

    Prompts are those of HMAS_DATA_DIR where it is set, else the project's own. Nothing else should run on the machine meanwhile.

    \b
    Examples:
      hmas-lab frontdoor --quick
      hmas-lab frontdoor
      hmas-lab frontdoor --vllm-python build/vllm/bin/python --model build/smollm2
      hmas-lab frontdoor --loads 1.3 --repeats 5 --arms no-agents,fcfs-cap-shed,paper,as-it-comes
      hmas-lab frontdoor --page docs/frontdoor.md
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if page is not None:
        say(f"{page}: written from {out}: {', '.join(write_page(page, out, dict.fromkeys(KINDS, body), command='hmas-lab frontdoor'))}")
        return
    if (options["vllm_python"] is None) != (options["model"] is None):
        raise click.UsageError("give --vllm-python and --model together")
    settings = settings_of(options)
    try:
        document = asyncio.run(_measure(settings, options, out))
    except asyncio.CancelledError:
        raise click.Abort from None
    kind = kind_of(settings, options)
    write_result(out / f"{kind}.json", document)
    if as_json:
        say_json(document)
    else:
        for found in filter(lambda one: one.rows, all_tables(document)):
            say(f"{found.title}\n{table(found.head, found.rows)}\n")
    hint(f"written to {out / kind}.json")
    failures = document["quick_failures"] if options["quick"] else _missed(document)
    for text in failures:
        complain(text)
    if failures:
        ctx.exit(EXIT_FAILED)


def settings_of(options: dict[str, Any]) -> DoorSettings:
    """The settings that the command line asks for."""
    base = VLLM if options["vllm_python"] is not None else QUICK if options["quick"] else FULL
    chosen: dict[str, Any] = {
        key: options[key] for key in ("seconds", "warmup_s", "repeats", "seed", "capacity_rps") if options[key] is not None
    }
    if options["budget"] is not None:
        chosen["budget_s"] = 60.0 * options["budget"]
    if options["apart"]:
        chosen["at_once"] = 1
    if options["caps"]:
        chosen["caps"] = _caps_of(options["caps"])
    if options["arms"]:
        chosen["arms"] = _arms_of(options["arms"])
    if options["forms"]:
        chosen["forms"] = read_names("--forms", options["forms"], FULL.forms)
    if options["loads"]:
        try:
            loads = tuple(float(part) for part in options["loads"].split(","))
        except ValueError:
            loads = ()
        if not loads or min(loads) <= 0.0:
            raise click.UsageError(f"--loads is {options['loads']!r}; allowed: numbers above 0 with commas between, such as 0.1,0.5")
        chosen |= {"loads": loads, "worth_loads": tuple(load for load in base.worth_loads if load in loads)}
    return msgspec.structs.replace(base, **chosen)


def _caps_of(text: str) -> tuple[int, ...]:
    caps = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if min(caps) < 1:
        raise click.UsageError(f"--caps is {text!r}; allowed: whole numbers from 1 with commas between, such as 8,12")
    return caps


def _arms_of(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in arm_names()]
    if unknown:
        raise click.UsageError(f"--arms names {unknown[0]!r}; allowed: {', '.join(arm_names())}")
    if PRODUCT not in names:
        raise click.UsageError(f"--arms is {text!r}; needed: {PRODUCT}, which all others are compared with")
    return names


def kind_of(settings: DoorSettings, options: dict[str, Any]) -> str:
    """The name of the measurement's files."""
    kind = ON_VLLM if settings.engine == "vllm" else f"{SIM}-quick" if options["quick"] else SIM
    return f"{kind}-forms" if options["forms"] else f"{kind}-arms" if options["arms"] else kind


async def _measure(settings: DoorSettings, options: dict[str, Any], out: Path) -> dict[str, Any]:
    cancel_on_sigterm()
    folder = data_dir()
    hint(f"prompts from {folder or 'datasets/'}")
    questions = read_questions(folder, max_prompt=settings.max_prompt, max_output=settings.max_output)
    load = DoorLoad(settings, questions, load_mixture()[1])
    runs_folder = out / f"{kind_of(settings, options)}-runs"
    runs_folder.mkdir(parents=True, exist_ok=True)
    async with engines_of(settings, options, runs_folder) as engines:
        runs = Runs(settings, load, engines, runs_folder, hint)
        kept = partial(write_result, out / f"{kind_of(settings, options)}.json")
        return await Measurement(settings, load, runs, SystemClock(), hint, keep=kept).run()


@asynccontextmanager
async def engines_of(settings: DoorSettings, options: dict[str, Any], folder: Path) -> AsyncIterator[tuple[str, ...]]:
    """What `hmas up --engine` is given: embedded engines that it starts, or one vLLM that serves all arms."""
    if settings.engine == "sim":
        yield settings.engines
        return
    server = VllmServer(python=options["vllm_python"], model=options["model"], max_model_len=MODEL_LEN, flags=VLLM_FLAGS)
    async with running_vllm(server, folder, "smollm2") as url:
        yield (f"vllm={url}",)


def _missed(document: dict[str, Any]) -> list[str]:
    return [f"missed: {one['goal']}" for one in document["summary"]["goals"] if one["verdict"] == "fail"]
