"""A user's own policies: checked whole, loaded by entry points, told of where they are refused; and the example of the documentation."""

import logging
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import ClassVar

import pytest
from typing_kit import fenced

from hmas.controller.config.plugins import ExtensionPoint
from hmas.controller.core.errors import PolicyError
from hmas.controller.scheduling.policies.edf import Edf
from hmas.controller.scheduling.policies.fcfs import Fcfs
from hmas.controller.scheduling.policies.registry import POLICIES, register
from hmas.controller.scheduling.policy_base.policy_check import check_policy
from hmas.controller.scheduling.policy_base.queue_entry import QueuePolicy
from hmas.testing import assert_conforms
from hmas.testing.conformance import try_out

DOCS = Path(__file__).resolve().parents[2] / "docs" / "policies.md"
GROUP = "hmas.policies"


@pytest.fixture
def pool():
    return dict(POLICIES)


def block(language: str) -> str:
    return fenced(DOCS.read_text(), language)


def install(folder: Path, **sources: str) -> Path:
    """A distribution as an installer leaves it: modules, and a folder of metadata with the entry points."""
    package = folder / "my_policies"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    info = folder / "my_policies-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-policies\nVersion: 1.2\n")
    return info / "entry_points.txt"


def points(folder: Path):
    return [point for one in distributions(path=[str(folder)]) for point in one.entry_points if point.group == GROUP]


class Own(Fcfs):
    name = "own"


def test_a_policy_is_added_by_its_name_once(pool):
    register(Own, pool)
    register(Own, pool)
    assert list(pool) == [*POLICIES, "own"]


def test_a_name_that_is_taken_is_refused_and_the_pool_stays(pool):
    class Other(Fcfs):
        name = "edf"

    with pytest.raises(PolicyError, match=r"'edf' is taken by hmas\.controller\.scheduling\.policies\.edf\.Edf"):
        register(Other, pool)
    assert pool["edf"] is Edf


def test_a_parameter_that_goes_with_any_policy_is_taken(pool):
    class Guarded(Fcfs):
        name = "guarded"
        default_parameters: ClassVar = {"tpot_guard": 0.3}
        parameter_ranges: ClassVar = {"tpot_guard": (0.0, 1.0)}

        def __init__(self, parameters):
            super().__init__(parameters)
            self.parameters = dict(parameters)

    with pytest.raises(PolicyError, match=r"parameter 'tpot_guard' of policy 'guarded' is taken: it goes with any policy"):
        register(Guarded, pool)
    assert "guarded" not in pool


@pytest.mark.parametrize(
    ("member", "value", "words"),
    [
        ("name", "Two Words", "name is 'Two Words'; allowed: lower-case"),
        ("summary", "", "summary is ''; allowed: a line of text"),
        ("starvation", None, "starvation is None"),
        (
            "signals",
            ("arrival",),
            r"signals is \('arrival',\); allowed: a tuple of hmas.controller.scheduling.policy_base.declaration.Signal",
        ),
        ("default_parameters", {"x": 1.0}, r"parameter_ranges has \[\]; allowed: the names of default_parameters, \['x'\]"),
        ("on_finished", None, "on_finished is None; allowed: a method with 3 arguments"),
        ("pop", lambda self: None, "pop does not take 1 arguments"),
        ("__len__", lambda self: 3, "an empty one has len 3"),
        ("pop", lambda self, now_s: 1 / 0, "an empty one with its default parameters failed: ZeroDivisionError"),
    ],
)
def test_what_is_missing_or_wrong_is_named(member, value, words, pool):
    wrong = type("Wrong", (Fcfs,), {"name": "wrong", member: value, "__module__": "theirs"})
    with pytest.raises(PolicyError, match=rf"^theirs\.Wrong is no policy: .*{words}"):
        register(wrong, pool)
    assert "wrong" not in pool


@pytest.mark.parametrize(
    ("defaults", "ranges", "words"),
    [
        ({"x": 5.0}, {"x": (0.0, 1.0)}, "default_parameters['x'] is 5.0; allowed: a number from 0 to 1"),
        ({"x": 0.5}, {"x": (1.0, 0.0)}, "parameter_ranges['x'] is (1.0, 0.0); allowed: the lowest and the highest value"),
        ({"X": 0.5}, {"X": (0.0, 1.0)}, "parameter 'X'; allowed: lower-case letters"),
    ],
)
def test_hints_have_defaults_within_their_ranges(defaults, ranges, words):
    with pytest.raises(PolicyError, match=re.escape(words)):
        check_policy(type("Wrong", (Fcfs,), {"name": "wrong", "default_parameters": defaults, "parameter_ranges": ranges}))


def test_everything_that_is_wrong_is_told_at_once():
    with pytest.raises(PolicyError) as caught:
        check_policy(type("Bare", (QueuePolicy,), {}))
    told = str(caught.value)
    for member in ("name", "push", "pop", "discard", "entries", "__len__"):
        assert f"{member} is missing" in told
    with pytest.raises(PolicyError, match="Other is no policy; allowed: a class that derives from"):
        check_policy(type("Other", (), {}))


def test_a_name_and_an_order_make_a_policy():
    """Everything else of the contract has a default."""

    class Newest(QueuePolicy):
        name = "newest"

        def __init__(self, parameters):
            super().__init__(parameters)
            self.waiting = {}

        def push(self, entry, now_s):
            self.waiting[entry.request.id] = entry

        def pop(self, now_s):
            return self.discard(max(self.waiting, key=lambda request_id: self.waiting[request_id].seq)) if self.waiting else None

        def discard(self, request_id):
            return self.waiting.pop(request_id, None)

        def entries(self):
            return iter(self.waiting.values())

        def __len__(self):
            return len(self.waiting)

    assert {result.check for result in try_out(Newest) if result.trouble} == {"starvation"}
    Newest.starvation = "starves: old requests, while new ones come"
    assert_conforms(Newest)


def test_the_example_of_the_documentation_is_loaded_and_conforms(tmp_path):
    declared = tomllib.loads(block("toml"))["project"]["entry-points"][GROUP]
    entry_points = install(tmp_path, shortest_prompt=block("python"))
    entry_points.write_text(f"[{GROUP}]\n" + "".join(f"{name} = {value}\n" for name, value in declared.items()))
    config = tmp_path / "hmas.yaml"
    config.write_text("scheduler:\n  policy: shortest-prompt\n")
    code = (
        "import os\n"
        "from hmas.controller.config.loader import load_config\n"
        f"assert load_config({str(config)!r}, {{}}).scheduler.policy == 'shortest-prompt'\n"
        "from hmas.planning.case import read_policy\n"
        "print(read_policy('shortest-prompt:tokens_per_s=100'))\n"
        "from hmas.testing import assert_conforms\n"
        "from my_policies.shortest_prompt import ShortestPrompt\n"
        "assert_conforms(ShortestPrompt)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "('shortest-prompt', {'tokens_per_s': 100.0})\n"


def test_plugins_that_cannot_be_used_are_skipped_with_a_warning_and_the_others_stay(tmp_path, monkeypatch, caplog, pool):
    entry_points = install(
        tmp_path,
        good="from hmas.controller.scheduling.policies.fcfs import Fcfs\nclass Good(Fcfs):\n    name = 'good'\n",
        broken="raise OSError('no licence')\n",
        short="class Short:\n    name = 'short'\n",
    )
    entry_points.write_text(
        f"[{GROUP}]\nbroken = my_policies.broken:Policy\ngood = my_policies.good:Good\nshort = my_policies.short:Short\n"
        "gone = my_policies.good:Gone\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        point = ExtensionPoint(GROUP, "policy", pool, lambda _name, policy: register(policy, pool))
        loaded = point.load_from(points(tmp_path))
    assert [(plugin.name, bool(plugin.refused)) for plugin in loaded] == [
        ("broken", True),
        ("gone", True),
        ("good", False),
        ("short", True),
    ]
    assert loaded[0].refused == "its import failed: OSError: no licence"
    assert "my_policies.short.Short is no policy; allowed: a class that derives from" in loaded[3].refused
    assert {plugin.distribution for plugin in loaded} == {"my-policies 1.2"}
    assert len(caplog.records) == 3
    assert "plugin broken = my_policies.broken:Policy (hmas.policies) of my-policies 1.2 is skipped: its import failed" in caplog.text
    assert list(pool) == [*POLICIES, "good"]
