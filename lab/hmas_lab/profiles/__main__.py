"""`python -m hmas_lab.profiles`: make profiles without an engine, and hold them against one."""

from pathlib import Path

import click

from hmas.engines.errors import ProfileError
from hmas_lab.profiles.build import build, dump_profile, one
from hmas_lab.profiles.check import GPU, compare, halves, read_rows, report
from hmas_lab.profiles.check_layers import compare_layers, report_layers
from hmas_lab.profiles.check_prompts import compare_prompts, report_prompts
from hmas_lab.profiles.compose import NO_HOST
from hmas_lab.profiles.models import BYTES
from hmas_lab.profiles.shares import measured_shares, roofline_errors
from hmas_lab.profiles.summary import reduction, table
from hmas_lab.profiles.tables import data_folder, read_tables

DATA = click.option("--data", type=click.Path(path_type=Path), help="Folder of the measured data; default $HMAS_DATA_DIR.")


@click.group()
def main() -> None:
    """Make performance profiles without an engine, and hold them against one."""


@main.command(name="one")
@click.option("--model", required=True, help="A model of datasets/models, or the path of a config.json.")
@click.option("--gpu", required=True, help="For example h100_sxm.")
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="GPUs that the model is split among.")
@click.option("--dtype", type=click.Choice(list(BYTES)), default="bfloat16", show_default=True, help="Of the layers' matrices.")
@click.option("--data-sheet", is_flag=True, help="A roofline from the data sheet; needs no measured data.")
@DATA
def one_command(*, model: str, gpu: str, tp: int, dtype: str, data_sheet: bool, data: Path | None) -> None:
    """Write one profile to standard output."""
    try:
        profile = one(model, gpu, tp=tp, dtype=dtype, data=data, data_sheet=data_sheet)
    except ProfileError as error:
        raise click.ClickException(str(error)) from error
    click.echo(dump_profile(profile).decode(), nl=False)


@main.command(name="check")
@click.option("--rows", is_flag=True, help="Show every run.")
@DATA
def check_command(*, rows: bool, data: Path | None) -> None:
    """Composed profiles against ML.ENERGY's vLLM runs on H100, their GEMMs against Vidur's, their prefill against Splitwise's."""
    try:
        folder = data_folder(data)
        tables = read_tables(folder)
        compared = compare(read_rows(folder), tables[GPU], NO_HOST)
        layers, prompts = compare_layers(folder, tables), compare_prompts(folder, tables)
    except ProfileError as error:
        raise click.ClickException(str(error)) from error
    click.echo("\n".join((*report(compared, halves(compared), rows=rows), *report_layers(layers), *report_prompts(prompts))))


@main.command(name="table")
def table_command() -> None:
    """The shipped profiles at a glance and how far they are from what they were made of, in Markdown."""
    click.echo("\n".join((*table(), "", *reduction())))


@main.command(name="shares")
@DATA
def shares_command(*, data: Path | None) -> None:
    """What share of their data sheets' rates the measured GPUs reach: the medians that data-sheet profiles use."""
    try:
        tables = read_tables(data_folder(data))
    except ProfileError as error:
        raise click.ClickException(str(error)) from error
    errors = roofline_errors(tables)
    for gpu, shares in sorted(measured_shares(tables).items()):
        found = "  ".join(f"{field} {value:.2f}" for field, value in shares._asdict().items())
        click.echo(f"{gpu:10} {found}  data-sheet profile off by {errors[gpu][0]:+.0%} to {errors[gpu][1]:+.0%}")


main.add_command(build, name="build")

if __name__ == "__main__":
    main()
