"""The package of docs/extending.md, outside of the repository: every example is loaded by its entry point and runs."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typing_kit import fenced

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`my_extensions/(\w+)\.py`:\n\n```python\n(.*?)```", PAGE, re.DOTALL))
PROJECT = tomllib.loads(fenced(PAGE, "toml"))["project"]


def install(folder: Path, package: str, files: dict[str, str], project: dict) -> None:
    """Puts a package where an installer leaves it: modules, and a folder of metadata with the entry points."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("")
    for name, text in files.items():
        (folder / package / f"{name}.py").write_text(text)
    info = folder / f"{package}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    install(folder, "my_extensions", FILES, PROJECT)
    return folder


def run(site: Path, *words: str, cwd: Path | None = None) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run([sys.executable, *words], env=env, cwd=cwd or site, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def plugins(site: Path) -> list[dict]:
    text = run(
        site,
        "-c",
        "import msgspec, sys\nfrom hmas.cli.doctor import all_plugins\nsys.stdout.buffer.write(msgspec.json.encode(all_plugins()))",
    )
    return json.loads(text)


def test_every_example_is_declared_once_and_loaded(site):
    declared = {(group, name) for group, points in PROJECT["entry-points"].items() for name in points}
    modules = {value.partition(":")[0] for points in PROJECT["entry-points"].values() for value in points.values()}
    assert modules == {f"my_extensions.{name}" for name in FILES}
    found = [plugin for plugin in plugins(site) if plugin["distribution"] == "my-extensions 0.1.0"]
    assert {(plugin["group"], plugin["name"]) for plugin in found} == declared
    assert [plugin for plugin in found if plugin.get("refused")] == []


def test_policy_router_selector_and_workload_run_in_one_simulation(site, tmp_path):
    run(site, "-m", "hmas", "policy", "check", "my_extensions.short_answer:ShortAnswer")
    run(site, "-m", "hmas", "router", "check", "my_extensions.fewest_tokens:FewestTokens")
    run(site, "-m", "hmas", "router", "check", "my_extensions.short_prompts:ShortPrompts")
    run(
        *(site, "-m", "hmas", "simulate", "--workload", "even:rate=6,duration=60", "--fleet", "2xdemo-small", "--policy", "short-answer"),
        *(
            "--router",
            "fewest-tokens",
            "--agents",
            "statera+meta",
            "--meta",
            "selector=surge",
            "--no-plots",
            "--out",
            str(tmp_path / "out"),
        ),
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["case"]["router"] == "fewest-tokens"


CONFIGURED = """
import asyncio
from pathlib import Path

from aiohttp import web

from hmas.agents.meta.make import make_meta
from hmas.agents.model_store.card import ModelCard, write_card
from hmas.agents.perception.reading import TASKS, PromptView
from hmas.agents.perception.readers import open_folder
from hmas.agents.statera.agent import make_agent
from hmas.controller.config.loader import load_config
from hmas.controller.core.types import TaskType
from hmas.engines.registry import connect_engine

config = load_config("hmas.yaml", {})
assert make_meta(config).model.policy == "short-answer"
assert make_agent(config).model is not None

folder = Path("model")
folder.mkdir()
(folder / "weights").write_text("none")
write_card(folder, ModelCard(kind="perception", format="long-is-essay"))
(reading,) = open_folder(folder, "mine").reader.read([PromptView(excerpt="x", question_chars=501)])
assert reading.probabilities[TASKS.index(TaskType.ESSAY_GENERATION)] == 0.6


async def engine() -> None:
    app = web.Application()
    app.router.add_get("/load", lambda _request: web.json_response({"running": 3, "waiting": 1}))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    connected = await connect_engine(name="e", url=f"http://127.0.0.1:{port}", kind=config.engines[0].kind)
    snapshot = await connected.snapshot(1.0)
    assert (snapshot.healthy, snapshot.running, snapshot.waiting) == (True, 3, 1), snapshot
    await connected.close()
    await runner.cleanup()


asyncio.run(engine())
"""


def test_the_configuration_takes_the_names_of_plugins(site, tmp_path):
    (tmp_path / "hmas.yaml").write_text(
        "scheduler: {policy: short-answer, routing: fewest-tokens}\n"
        "engines: [{name: e, url: 'http://127.0.0.1:9', kind: acme}]\n"
        "agents: {meta_selector: surge, meta_judge: false, statera_budget_law: decode-first}\n"
    )
    run(site, "-c", CONFIGURED, cwd=tmp_path)


def test_what_cannot_be_used_is_reported_with_its_package_and_stops_nothing(tmp_path):
    broken = {
        "gone": "raise OSError('no licence')\n",
        "wrong": "class Router:\n    name = 'wrong'\nclass Law:\n    budget = 0\n    def update(self, seen): return 0\n",
        "named": "class Router:\n    name = 'another'\n    def rank(self, entry, instances, now_s): return []\n",
        "taken": "class Router:\n    name = 'least-loaded'\n    def rank(self, entry, instances, now_s): return []\n",
    }
    points = {
        "hmas.routers": {"wrong": "theirs.wrong:Router", "named": "theirs.named:Router", "least-loaded": "theirs.taken:Router"},
        "hmas.budget_laws": {"nothing": "theirs.wrong:Law"},
        "hmas.engines": {"acme": "theirs.wrong:Law"},
        "hmas.selectors": {"gone": "theirs.gone:Selector"},
        "hmas.workloads": {"tools": "theirs.wrong:Router"},
    }
    install(tmp_path, "theirs", broken, {"name": "theirs", "version": "1.2", "entry-points": points})
    refused = {plugin["name"]: plugin["refused"] for plugin in plugins(tmp_path) if plugin["distribution"] == "theirs 1.2"}
    assert refused == {
        "wrong": "<class 'theirs.wrong.Router'> is no router; allowed: a class with the methods of hmas.controller.core.placement.Router",
        "named": "the router has the name 'another'; allowed: 'named', as its entry point",
        "least-loaded": "the name 'least-loaded' is taken by hmas.controller.routing.least_loaded.LeastLoaded",
        "nothing": refused["nothing"],
        "acme": refused["acme"],
        "gone": "its import failed: OSError: no licence",
        "tools": refused["tools"],
    }
    assert "with 0 tokens; allowed: 9 to 2048" in refused["nothing"]
    assert "derives from hmas.engines.openai.OpenAIEngine" in refused["acme"]
    checks = json.loads(run(tmp_path, "-c", DOCTOR))
    assert [check["state"] for check in checks] == ["WARN"] * len(refused)
    assert any("gone = theirs.gone:Selector (hmas.selectors) of theirs 1.2 is skipped: its import failed" in one["found"] for one in checks)
    assert "wrong" in run(tmp_path, "-c", MISTAKES)


DOCTOR = """
import json
from dataclasses import asdict
from hmas.cli.doctor import check_plugins
from hmas.cli.doctor import all_plugins
print(json.dumps([asdict(check) for check in check_plugins([one for one in all_plugins() if one.distribution == "theirs 1.2"])]))
"""
MISTAKES = """
from pathlib import Path
from hmas.agents.meta.make import make_meta
from hmas.controller.config.loader import ConfigMistakes, load_config
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.errors import ConfigError
Path("hmas.yaml").write_text("scheduler: {routing: wrong}\\nagents: {meta_selector: magic, statera_budget_law: x}\\n")
try:
    load_config("hmas.yaml", {})
except ConfigMistakes as mistakes:
    text = str(mistakes)
print(text)
assert "scheduler.routing: got 'wrong' (a text); the plugin wrong = theirs.wrong:Router (hmas.routers) of theirs 1.2 is refused" in text
assert "agents.meta_selector: got 'magic' (a text); allowed: one of twin, rules, llm" in text
assert "agents.statera_budget_law: got 'x' (a text); allowed: one of band, memory, nothing" in text
try:
    make_meta(Config(agents=AgentsConfig(meta_selector="gone")))
except ConfigError as error:
    assert "of theirs 1.2 is refused: its import failed: OSError: no licence" in str(error)
else:
    raise AssertionError("a selector that cannot be imported was made")
"""
