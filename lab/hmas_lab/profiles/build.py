"""Writes the profiles that ship with H-MAS: `python -m hmas_lab.profiles.build [--data DIR] [--out DIR]`."""

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from hmas.engines.errors import ProfileError
from hmas.engines.sim.profile import Profile
from hmas_lab.profiles.compose import Host, compose
from hmas_lab.profiles.models import load_model
from hmas_lab.profiles.tables import Tables, data_folder, read_tables

MODELS = ("qwen3-8b", "qwen3-14b", "qwen3-30b-a3b", "llama-3-8b", "llama-3-70b", "llama-2-13b")
MEASURED = ("a100_sxm", "h100_sxm", "h200_sxm", "l40s")
DEGREES = (1, 2, 4, 8)
DATA_SHEET = (("a30", "llama-3-8b", 1), ("a30", "qwen3-8b", 1), ("l4", "llama-3-8b", 1), ("l4", "qwen3-8b", 1))
USEFUL_TOKENS = 16384
"""KV room from which a combination is worth shipping: a handful of requests of a few thousand tokens."""

HOST = Host(
    step_ms=0.804,
    ms_per_seq=0.0318,
    note="from every other one of ML.ENERGY's vLLM runs on H100 (on the rest the median error is 6 %, without it 17 %)",
)
"""What `python -m hmas_lab.profiles check` finds: host work, launches, gaps, and sampling beyond a plain draw."""


def dump_profile(profile: Profile) -> bytes:
    """The profile as a JSON document: keys sorted, indented by two spaces, the same bytes for the same profile."""
    curve = [list(point) for point in profile.token_curve]
    document = msgspec.structs.asdict(profile) | {"token_curve": curve}
    lines = [f"  {msgspec.json.encode(key).decode()}: {msgspec.json.encode(document[key]).decode()}" for key in sorted(document)]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def ready(tables: dict[str, Tables]) -> Iterator[Profile]:
    """Every profile that ships, composed anew: each model on each measured GPU at each TP degree that divides it and leaves useful room."""
    for name in MODELS:
        model = load_model(name)
        for gpu in MEASURED:
            for tp in DEGREES:
                if model.num_key_value_heads % tp:
                    continue
                try:
                    profile = compose(model, gpu, tp=tp, tables=tables[gpu], host=HOST)
                except ProfileError as error:
                    if "weights of" not in str(error):
                        raise
                    continue
                if profile.kv_capacity_tokens >= USEFUL_TOKENS:
                    yield profile
    for gpu, name, tp in DATA_SHEET:
        yield compose(load_model(name), gpu, tp=tp, host=HOST)


def one(config: str, gpu: str, *, tp: int, dtype: str, data: Path | None, data_sheet: bool = False, host: Host = HOST) -> Profile:
    """One profile by names, as the command `one` makes it.

    Raises:
        ProfileError: Something is unknown, does not fit or was not measured.
    """
    tables = None if data_sheet else read_tables(data_folder(data), gpu)[gpu]
    return compose(load_model(config), gpu, tp=tp, dtype=dtype, tables=tables, host=host)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Folder of the measured data; default $HMAS_DATA_DIR.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("engines/sim/profiles"), show_default=True, help="Where to write.")
def build(data: Path | None, out: Path) -> None:
    """Write the ready profiles."""
    try:
        profiles = list(ready(read_tables(data_folder(data))))
    except ProfileError as error:
        raise click.ClickException(str(error)) from error
    out.mkdir(parents=True, exist_ok=True)
    for profile in profiles:
        (out / f"{profile.name}.json").write_bytes(dump_profile(profile))
    click.echo(f"{len(profiles)} profiles in {out}")


if __name__ == "__main__":
    build()
