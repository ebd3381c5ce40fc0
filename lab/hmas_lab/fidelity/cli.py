"""`hmas-lab fidelity`: how far the simulator can be trusted."""

import asyncio
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from hmas.cli.output import hint, json_option, say, say_json, table
from hmas.engines.sim.profile import Profile
from hmas_lab.fidelity import vllm
from hmas_lab.fidelity.pilot import DEFAULT_FIT
from hmas_lab.fidelity.study import GOALS, report
from hmas_lab.vllm_engine import VllmServer


class Users(click.ParamType[tuple[int, ...]]):
    """User counts from a text such as `1,4,16`."""

    name = "N,N,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The counts, two or more, each 1 or more."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        counts = tuple(sorted({int(part) for part in parts if part.strip().isdigit()}))
        if len(counts) < 2 or len(counts) < len(parts) or counts[0] < 1:
            self.fail(f"{value!r} is no list of user counts; allowed: two or more different numbers, such as 1,4,16,128", param, ctx)
        return counts


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), envvar="HMAS_DATA_DIR", help="Folder with the logs.")
@click.option(
    "--llm-pilot",
    "more",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="More logs of LLM-Pilot's form.",
)
@click.option("--fit-users", type=Users(), default=",".join(map(str, DEFAULT_FIT)), show_default=True, help="User counts to fit.")
@click.option("--cross-validate", is_flag=True, help="Predict besides each user count from all others, in turn (takes six times as long).")
@click.option("--gpu", default="H100", show_default=True, help="Whose batch-size sweeps are taken.")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Deployments fitted at once.")
@click.option(
    "--vllm-python", type=click.Path(exists=True, path_type=Path), help="Compare with a real vLLM instead: the Python that has it."
)
@click.option("--model-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The model that this vLLM serves.")
@click.option("--rounds", type=click.IntRange(1, 10), default=2, show_default=True, help="Repetitions of the comparison with vLLM.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for fidelity.json and the plots.")
@json_option
def fidelity(
    *,
    data: Path | None,
    more: tuple[Path, ...],
    fit_users: tuple[int, ...],
    cross_validate: bool,
    gpu: str,
    processes: int,
    vllm_python: Path | None,
    model_dir: Path | None,
    rounds: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Predict measured loads that the simulator was not fitted to, and state the errors.

    Reads LLM-Pilot's logs and ML.ENERGY's sweeps from a data folder; or, with --vllm-python, measures a real vLLM on this machine's CPU,
    on which nothing else should run then.

    \b
    Examples:
      hmas-lab fidelity --data data --out build/fidelity
      hmas-lab fidelity --data data --llm-pilot more.csv.gz --llm-pilot more_summary.csv --fit-users 1,4,16,128
      hmas-lab fidelity --vllm-python build/vllm/bin/python --model-dir build/tiny-model
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    if vllm_python is not None or model_dir is not None:
        if vllm_python is None or model_dir is None:
            raise click.UsageError("--vllm-python and --model-dir go together")
        document = _with_vllm(vllm_python, model_dir, rounds)
        name = "fidelity-vllm.json"
    else:
        if data is None and not more:
            raise click.UsageError("give --data DIR (or HMAS_DATA_DIR), --llm-pilot FILE, or --vllm-python")
        document = report(
            data, more=more, fit_users=fit_users, cross_validate=cross_validate, gpu=gpu, processes=processes, plots=out, tell=hint
        )
        name = "fidelity.json"
    if out is not None:
        (out / name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        hint(f"written to {out / name}")
    if as_json:
        say_json(document)
    else:
        say(_text(document))


def vllm_document(outcome: vllm.VllmOutcome) -> dict[str, Any]:
    """The comparison with a real vLLM as a JSON document."""
    return {
        "profile": {field: getattr(outcome.profile, field) for field in _COEFFICIENTS},
        "fit": [msgspec.to_builtins(one) for one in outcome.misfits],
        "loads": [
            {"in_flight": in_flight} | {key: round(value, 4) for key, value in row.items()}
            for in_flight, row in vllm.by_load(outcome).items()
        ],
        "runs": [msgspec.to_builtins(pair) | {"errors": pair.errors} for pair in outcome.pairs],
    }


_COEFFICIENTS = tuple(
    field.name for field in msgspec.structs.fields(Profile) if field.name.endswith("_ms") or field.name.startswith(("prefill_", "decode_"))
)


def _with_vllm(python: Path, model_dir: Path, rounds: int) -> dict[str, Any]:
    settings = vllm.VllmSettings(rounds=rounds)
    with tempfile.TemporaryDirectory(prefix="hmas-fidelity-") as folder:
        outcome = asyncio.run(vllm.study(VllmServer(python=python, model=model_dir), Path(folder), settings, hint))
    return {"vllm": vllm_document(outcome)}


def _text(document: Mapping[str, Any]) -> str:
    parts = []
    if "llm_pilot" in document:
        parts.append(_pilot_text(document["llm_pilot"]))
    if "ml_energy" in document:
        parts.append(_energy_text(document["ml_energy"]))
    if "vllm" in document:
        parts.append(_vllm_text(document["vllm"]))
    return "\n\n".join(parts)


def _pilot_text(pilot: Mapping[str, Any]) -> str:
    texts = []
    for title, key in (
        ("fitted at " + ", ".join(map(str, pilot["fit_users"])) + " users", "split"),
        ("each count from all others", "leave_out"),
    ):
        if key not in pilot:
            continue
        found = pilot[key]
        rows: list[tuple[object, ...]] = [("all", *(_percent(found["median"][name]) for name in GOALS))]
        rows += [(users, *(_percent(row[name]) for name in GOALS)) for users, row in found["by_users"].items()]
        texts.append(
            f"LLM-Pilot, {title}: median absolute error on {found['runs']} runs held out\n"
            + table(["users", "TPOT", "throughput", "TTFT"], rows)
            + "\n\nthe worst of them\n"
            + table(_WORST_HEAD, [_worst(row) for row in found["worst"]])
        )
        if found["not_whole"]:
            rows = [_worst(row) for row in found["not_whole"]]
            texts.append(f"{len(rows)} runs left out of these figures, since their logs are not whole\n" + table(_WORST_HEAD, rows))
    return "\n\n".join(texts)


_WORST_HEAD = ("deployment", "users", "TPOT", "throughput", "TTFT", "why")


def _worst(row: Mapping[str, Any]) -> tuple[object, ...]:
    name = f"{row['model']} {row['n_gpus']} x {row['gpu']}"
    return (name, row["users"], *(f"{row['errors'][quantity]:+.0%}" for quantity in GOALS), row["why"])


def _energy_text(energy: Mapping[str, Any]) -> str:
    rows = [("all", _percent(energy["median"]["tpot"]))]
    rows += [(task, _percent(value)) for task, value in energy["by_task"].items()]
    worst = [(f"{row['model']} x {row['n_gpus']}", row["task"], row["batch"], f"{row['error']:+.0%}") for row in energy["worst"]]
    return (
        f"ML.ENERGY, {energy['gpu']}: median absolute error of the TPOT on {energy['runs']} batch sizes held out\n"
        + table(["task", "TPOT"], rows)
        + f"\n\nfrom three batch sizes alone: {_percent(energy['three_points']['median']['tpot'])} on {energy['three_points']['runs']}"
        + f"\nfrom composed profiles, nothing fitted: {_percent(energy['composed']['median']['tpot'])} on {energy['composed']['runs']}"
        + "\n\nthe worst of them\n"
        + table(["engine", "task", "batch", "TPOT"], worst)
    )


def _vllm_text(found: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{load['rate_rps']:.2f} requests/s",
            name.upper(),
            round(load[f"{name}_ms_measured"], 2),
            round(load[f"{name}_ms_predicted"], 2),
            f"{load[f'{name}_error']:+.1%}",
            _percent(load[f"{name}_spread"]),
        )
        for load in found["loads"]
        for name in ("ttft", "tpot")
    ]
    return "vLLM on this CPU: medians, ms\n" + table(["load", "quantity", "measured", "predicted", "error", "spread of rounds"], rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
