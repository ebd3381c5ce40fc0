"""The plugins' source comes out of an installed H-MAS whole."""

import tomllib
from pathlib import Path

import pytest

from hmas.cli.engine_plugin import STARTS
from hmas.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


@pytest.mark.parametrize("kind", sorted(STARTS))
def test_a_plugin_comes_out_whole(kind, tmp_path, capsys):
    target = tmp_path / "out"
    assert main(["engines", "plugin", kind, "--target", str(target)]) == 0
    out = capsys.readouterr().out
    assert f"pip install --no-deps {target}" in out
    project = tomllib.loads((target / "pyproject.toml").read_text())
    named = {value.split(":")[0] for group in project["project"]["entry-points"].values() for value in group.values()}
    assert named, "it has entry points, and their modules are there"
    for module in named:
        assert (target / (module.replace(".", "/") + ".py")).is_file()
    assert project["project"]["dependencies"] == []
    assert not list(target.rglob("__pycache__"))
    assert main(["engines", "plugin", kind, "--target", str(target)]) == 2
    assert "there already" in capsys.readouterr().err


@pytest.mark.parametrize("kind", sorted(STARTS))
def test_the_command_that_starts_the_engine_is_that_of_the_page(kind):
    page, command = (text.replace("\\\n", " ").split() for text in (PAGE.read_text(encoding="utf-8"), STARTS[kind]))
    assert f" {' '.join(command)} ``` " in " ".join(page)


def test_without_a_target_it_says_where_the_source_is(capsys):
    assert main(["engines", "plugin", "vllm"]) == 0
    assert "engines/plugin" in capsys.readouterr().out
