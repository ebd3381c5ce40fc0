"""Style rules that no linter knows: dead files, banned calls with the replacement named, lengths, links, words."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("engines", "controller", "agents", "hmas")
SOURCES = (*FLOORS, "lab")
STARTED_BY_NAME = {
    "hmas.cli.main": "console script in pyproject.toml",
    "hmas.agents.perception.agent": "imported by name by hmas.agents.runtime.shell",
    "hmas.agents.prediction.agent": "likewise",
    "hmas_lab.cli": "console script in lab/pyproject.toml",
    "hmas_lab.meta.bandit": "entry point hmas.selectors in lab/pyproject.toml",
    "hmas_lab.meta.change_point": "entry point hmas.selectors in lab/pyproject.toml",
    "hmas_lab.forced_length": "loaded by vLLM with --logits-processors",
    "hmas.engines.plugin.hmas_engine_plugin.vllm.core": "entry point vllm.general_plugins",
    "hmas.engines.plugin.hmas_engine_plugin.vllm.endpoint": "entry point vllm.endpoint_plugins",
    "hmas.engines.plugin.hmas_engine_plugin.vllm.scheduler": "loaded by vLLM with --scheduler-cls",
    "hmas.engines.plugin.hmas_engine_plugin.sglang.hooks": "entry point sglang.srt.plugins",
}
"""Modules that no import reaches, and who starts them instead."""

LONG_FILES: dict[str, str] = {}
"""Files over 400 lines, each with the reason why it is one thing."""

BANNED = {
    r"\btime\.time\(": ("controller/runtime/clock.py", "a clock passed in: `clock.now_s()`"),
    r"\bdatetime\.now\(": (None, "a clock passed in: `clock.now_s()`"),
    r"\blogging\.basicConfig\(": ("controller/runtime/logs.py", "`hmas.controller.runtime.logs`"),
    r"\bsys\.exit\(|\bos\._exit\(": (("hmas/cli/", "lab/hmas_lab/__main__.py"), "an exception; only the CLI and the runtime exit"),
    r"\bhttpx\b": (None, "aiohttp: httpx costs ten times the CPU on the request path"),
    r"\brandom\.(random|choice|randint|gauss|seed)\(": (None, "a seeded numpy Generator"),
}


@cache
def tracked(*suffixes: str) -> list[Path]:
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    paths = [ROOT / line for line in out.splitlines()]
    return sorted(p for p in paths if p.is_file() and (not suffixes or p.suffix in suffixes))


def sources() -> list[Path]:
    return [
        p
        for p in tracked(".py")
        if p.relative_to(ROOT).parts[0] in SOURCES
        and "tests" not in p.relative_to(ROOT).parts
        and "benchmarks" not in p.relative_to(ROOT).parts
    ]


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in FLOORS and parts[0] != "hmas":
        parts.insert(0, "hmas")
    if parts[0] == "lab":
        parts.pop(0)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported_names(path: Path) -> set[str]:
    """Every module a file imports or names in a string (`python -m`, lazy loading)."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module_name(path).split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[a-z_]+(\.[a-z_]+)+(:\w+)?", node.value):
            names.add(node.value.split(":")[0])
    return names


def test_every_module_has_a_reader():
    readers: dict[str, set[str]] = {}
    for path in tracked(".py"):
        if "tests" in path.relative_to(ROOT).parts:
            continue
        for name in imported_names(path):
            readers.setdefault(name, set()).add(module_name(path))
    dead = []
    for path in sources():
        name = module_name(path)
        if path.name in {"__init__.py", "__main__.py"} or name in STARTED_BY_NAME:
            continue
        if not readers.get(name, set()) - {name}:
            dead.append(name)
    assert dead == [], "nothing but tests imports these: delete them, or say in STARTED_BY_NAME who starts them"


def test_hmas_is_the_only_import_root():
    """Other distributions have packages of the names `agents` and `engines`, too; a link under hmas/ leads to each of our folders."""
    links = {name: (ROOT / "hmas" / name).readlink() for name in (*FLOORS[:-1], "data")}
    assert links == {**{name: Path("..") / name for name in FLOORS[:-1]}, "data": Path("../datasets")}
    outside = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in tracked(".py")
        for name in imported_names(path)
        if name.split(".")[0] in FLOORS[:-1] and (ROOT / Path(*name.split("."))).with_suffix(".py").exists()
    }
    assert outside == set()


def test_every_package_holds_something():
    empty = [
        str(p.parent.relative_to(ROOT))
        for p in sources()
        if p.name == "__init__.py" and {one.name for one in p.parent.iterdir()} <= {"__init__.py", "__pycache__"}
    ]
    assert empty == []


def test_files_stay_short():
    long = {str(p.relative_to(ROOT)): n for p in tracked(".py") if (n := len(p.read_text().splitlines())) > 400}
    assert set(long) <= set(LONG_FILES), f"split, or give the reason in LONG_FILES: {long}"
    assert set(LONG_FILES) <= set(long), "no longer long: take it out of LONG_FILES"


@pytest.mark.parametrize("pattern", BANNED, ids=lambda p: re.sub(r"\W+", "-", p).strip("-"))
def test_banned_calls(pattern: str):
    home, instead = BANNED[pattern]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        if not (home and str(path.relative_to(ROOT)).startswith(home))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line.split("#")[0])
    ]
    assert found == [], f"use {instead}"


def test_nothing_is_left_unfinished():
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked(".py", ".md", ".toml", ".service", ".yaml")
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_no_machine_paths_or_registry_hosts():
    pattern = re.compile(r"/(home|root|Users|work)/[a-z]|--(extra-)?index-url|files\.pythonhosted|find-links")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked(".py", ".md", ".toml", ".lock", ".txt", ".service", ".yaml", ".json")
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_links_in_the_docs_lead_somewhere():
    broken = []
    for path in tracked(".md"):
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", path.read_text()):
            page = path.parent / target if target else path
            if "://" not in target and not (page.exists() and (not anchor or anchor in anchors(page))):
                broken.append(f"{path.relative_to(ROOT)} -> {target}#{anchor}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page ends with."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def test_files_named_in_the_docs_exist():
    """`NAME` stands for any name; what a recipe tells its reader to write is under `my_`."""
    known = [f"/{path.relative_to(ROOT)}" for path in tracked(".py")]
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked(".md")
        if path.name != "CHANGELOG.md"
        for name in re.findall(r"[\w./-]*\w\.py\b", path.read_text())
        if "NAME" not in name and "my_" not in name
        if not any(file.endswith("/" + name.lstrip("./").removeprefix("hmas/")) for file in known)
    ]
    assert missing == []


def test_datasets_is_no_python_package():
    assert not (ROOT / "datasets" / "__init__.py").exists(), "it would shadow Hugging Face's `datasets`"


def test_tests_do_not_sleep():
    """In virtual time a sleep takes none."""
    pattern = re.compile(r"\btime\.sleep\(\s*(0\.[1-9]|[1-9])|\basyncio\.sleep\(\s*(0\.[2-9]|[1-9])")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked(".py")
        if "tests" in path.relative_to(ROOT).parts and "run_virtual(" not in path.read_text()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], "wait for an event, or poll with a bound"


def test_make_targets_named_in_the_docs_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {(str(p.relative_to(ROOT)), t) for p in tracked(".md") for t in re.findall(r"`make ([a-z-]+)`", p.read_text())}
    assert {(p, t) for p, t in named if t not in targets} == set()
