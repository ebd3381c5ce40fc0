"""`hmas engines plugin`: copies the control plugin that comes with H-MAS, for the engines' environments."""

import shutil
from pathlib import Path

import click

import hmas.engines.base
from hmas.cli.output import say

SOURCE = Path(hmas.engines.base.__file__).parent / "plugin"
STARTS = {
    "vllm": (
        "VLLM_PLUGINS=hmas_control HMAS_CONTROL_TOKEN=... vllm serve MODEL \\\n"
        "    --scheduling-policy priority --scheduler-cls hmas_engine_plugin.vllm.scheduler.HmasScheduler"
    ),
    "sglang": (
        "HMAS_CONTROL_TOKEN=... python -m sglang.launch_server --model-path MODEL --enable-priority-scheduling \\\n"
        "    --default-priority-value 0 --enable-metrics --load-snapshot-publish-interval 1"
    ),
}
"""The commands that start an engine with its plugin."""


@click.command()
@click.argument("kind", type=click.Choice(sorted(STARTS)))
@click.option("--target", type=click.Path(file_okay=False, path_type=Path), help="Copy the plugin's source into this new directory.")
def plugin(kind: str, target: Path | None) -> None:
    """Print how to install the plugin for live control of the scheduler in an engine of KIND.

    One plugin serves every kind. Install it in the engine's environment, not in that of H-MAS; it has no dependencies beyond the engine's.
    Copy it to the engine's machine, install it there, and name the token in the gateway's configuration.

    \b
    Example:
      hmas engines plugin vllm --target hmas-engine-plugin
    """  # noqa: D301 - click reads \b as "do not rewrap"
    if target is None:
        say(f"{SOURCE}\n\ncopy it out with `hmas engines plugin {kind} --target DIR`, then, in the engine's environment:")
        target = Path("DIR")
    else:
        if target.exists():
            raise click.UsageError(f"--target {target} is there already; give a directory that is not")
        try:
            shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
        except OSError as error:
            raise click.ClickException(f"cannot write {target}: {error}") from error
        say(f"{target} holds the plugin; in the engine's environment:")
    say(f"\n    pip install --no-deps {target}")
    say("\nor, where the engine's machine reaches no package registry and has setuptools:")
    say(f"\n    pip install --no-deps --no-build-isolation --no-index {target}")
    say(f"\nand start the engine with it:\n\n    {STARTS[kind]}")
    say("\nIn the gateway's configuration, engines[].control_token_env names the variable that holds the same token there.")
