"""`hmas profile`: measures a live engine and writes its performance profile."""

import json
import os
from pathlib import Path

import click
import uvloop

from hmas.cli.output import check_writable, example, hint, json_option, say, say_json, table, writing
from hmas.cli.values import Number
from hmas.engines.sim.profile import Profile
from hmas.profiling.coefficients import Fit, fit_coefficients
from hmas.profiling.design import Bounds, plan
from hmas.profiling.measured import Limits, Stated, document_of, limits_of, model_name, profile_of, slug
from hmas.profiling.probe import Findings, probe
from hmas.profiling.target import Target, look_at

PROGRESS_EVERY = 6


class Concurrencies(click.ParamType[tuple[int, ...]]):
    """An option type: whole numbers from a text such as `1,4,16`."""

    name = "N,N,..."

    def __init__(self, least: int = 2) -> None:
        """`least`: how many numbers there must be."""
        self._least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Returns the numbers, each once and 1 to 1024, in rising order."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        numbers = tuple(sorted({int(part) for part in parts if part.strip().isdecimal()}))
        if len(numbers) < self._least or len(numbers) > len(parts) or not 1 <= numbers[0] <= numbers[-1] <= 1024:
            allowed = f"{self._least} or more numbers from 1 to 1024, such as 1,4,16"
            self.fail(f"{value!r} is no list of concurrencies; allowed: {allowed}", param, ctx)
        return numbers


@click.command(
    epilog=example(
        "hmas profile http://127.0.0.1:8000 --gpu h100_sxm --out h100-llama.json",
        "hmas profile http://127.0.0.1:8000 --max-seconds 30 --concurrency 1,4,16",
        "hmas up --engine sim:./h100-llama.json",
    )
)
@click.argument("url")
@click.option("--model", default="", help="Model to measure; default: the first that the address lists.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Where the profile goes; default: GPU-MODEL.json here.")
@click.option("--max-seconds", type=Number(1, 3600), default=120.0, show_default=True, help="No request is sent after this.")
@click.option("--max-tokens", type=click.IntRange(1000), default=400_000, show_default=True, help="Prompt and output tokens in all.")
@click.option("--concurrency", type=Concurrencies(), default="1,2,4,8,16,32", show_default=True, help="Requests that decode together.")
@click.option("--repeats", type=click.IntRange(1, 50), default=3, show_default=True, help="How often each measurement is taken.")
@click.option("--gpu", default="unknown", show_default=True, help="Name of the GPU, for the file.")
@click.option("--tp", type=click.IntRange(1, 1024), default=1, show_default=True, help="Tensor parallel size, for the file.")
@click.option("--dtype", default="bfloat16", show_default=True, help="Type of the weights, for the file.")
@click.option("--kv-tokens", type=click.IntRange(1), help="Tokens the KV cache holds; default: what the engine's metrics say.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), help="KV bytes of one token (2 x layers x KV heads x head size x bytes).")
@click.option("--max-model-len", type=click.IntRange(1), help="Context length; default: what the engine's list of models says.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Sequences at once; default: what the engine says, else 256.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Tokens per step; default: what the engine says, else 2048.")
@click.option("--api-key-env", default="HMAS_API_KEY", show_default=True, help="Environment variable with the engine's API key.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The prompts' words follow from it.")
@json_option
def profile(
    *,
    url: str,
    model: str,
    out: Path | None,
    max_seconds: float,
    max_tokens: int,
    concurrency: tuple[int, ...],
    repeats: int,
    api_key_env: str,
    seed: int,
    as_json: bool,
    **stated_fields: object,
) -> None:
    """Measure the engine at URL and write its profile.

    Sends single prompts of several lengths and batches at several concurrencies, one after the other, to any OpenAI-compatible engine
    that streams. Then fits the step time of the engine model to the measurements and states the error of the fit. The engine should serve
    no other requests meanwhile.
    """
    check_writable(out or Path("profile.json"))
    stated = Stated(**stated_fields)  # type: ignore[arg-type]  # click has checked and converted each
    key = os.environ.get(api_key_env, "")
    address = url.rstrip("/").removesuffix("/v1")
    target = uvloop.run(look_at(address, model=model, api_key=key))
    limits = limits_of(target, stated)
    bounds = Bounds(
        max_model_len=limits.max_model_len,
        kv_tokens=limits.kv_tokens,
        max_num_seqs=limits.max_num_seqs,
        concurrency=concurrency,
        repeats=repeats,
        max_tokens=max_tokens,
    )
    batches = plan(bounds)
    hint(f"{address}: {target.kind} {target.version}, model {target.model}; {len(batches)} measurements, {max_seconds:g} s at most")
    findings = uvloop.run(probe(target, batches, api_key=key, max_seconds=max_seconds, seed=seed, on_progress=_tell))
    if findings.sent < findings.planned:
        hint(f"stopped after {findings.elapsed_s:.0f} s with {findings.sent} of {findings.planned} measurements")
    fit = fit_coefficients(findings.prefills, findings.decodes, tokens_per_step=limits.max_num_batched_tokens)
    path = out or Path(f"{slug(model_name(target), stated.gpu)}.json")
    made = profile_of(path.stem, target=target, stated=stated, limits=limits, findings=findings, fit=fit)
    document = document_of(made)
    # The result is printed first, so that a file that cannot be written costs no measurement.
    if as_json:
        say_json(
            {"profile": document, "fit": {one.quantity: {"count": one.count, "median": one.median, "p90": one.p90} for one in fit.misfits}}
        )
    else:
        say(_report(target, limits, findings, fit, made))
    with writing(path):
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    hint(f"written to {path}")


def _tell(sent: int, planned: int, elapsed_s: float) -> None:
    if sent % PROGRESS_EVERY == 0 or sent == planned:
        hint(f"{elapsed_s:6.1f} s: {sent} of {planned}")


def _report(target: Target, limits: Limits, findings: Findings, fit: Fit, made: Profile) -> str:
    rows: list[tuple[str, object]] = [(name, float(f"{value:.4g}")) for name, value in fit.values.items()]
    rows += [("kv_blocks", made.kv_blocks), ("max_num_seqs", made.max_num_seqs), ("max_num_batched_tokens", made.max_num_batched_tokens)]
    errors = [(one.quantity, one.count, f"{one.median:.1%}", f"{one.p90:.1%}") for one in fit.misfits]
    text = f"{table(['coefficient', 'value'], rows)}\n\n{table(['error of the fit', 'measurements', 'median', '90 %'], errors)}"
    if limits.assumed:
        text += f"\n\n{target.kind} does not state: {', '.join(limits.assumed)} (assumed)"
    return f"{text}\n\n{findings.tokens} tokens in {findings.elapsed_s:.1f} s"
