import msgspec
import pytest

from hmas.demo.calibration import SWEEP_CAPS
from hmas.demo.settings import DemoSettings
from hmas.demo.story import NAMES, _better, _next_to, _Stage, _variants
from hmas.demo.virtual import Variant


def test_four_runs_differ_in_what_they_are_named_for():
    variants = {v.name: v for v in _variants({"keep": 28, "shed": 24})}
    assert tuple(variants) == NAMES
    assert variants["engine-default"] == Variant(name="engine-default", policy="fcfs", n_run=0, overdue="keep")
    assert variants["fcfs-best-cap"] == Variant(name="fcfs-best-cap", n_run=28)
    assert variants["fcfs-best-cap-shed"] == Variant(name="fcfs-best-cap-shed", n_run=24, overdue="shed")
    assert variants["hmas"].n_run == 0, "H-MAS is not told the best window"


@pytest.mark.parametrize(
    ("n_run", "windows"),
    [(24, [20, 28]), (SWEEP_CAPS[0], [SWEEP_CAPS[1]]), (SWEEP_CAPS[-1], [SWEEP_CAPS[-2]]), (0, [])],
)
def test_neighbours_are_the_next_of_the_grid(n_run, windows):
    found = _next_to(Variant(name="fcfs-best-cap", n_run=n_run))
    assert [v.n_run for v in found] == windows
    assert all(v.name == f"fcfs-best-cap-{v.n_run}" for v in found)


class Run(msgspec.Struct):
    variant: Variant
    score: "Score"
    noisy: bool = False
    broken: list[str] = []


class Score(msgspec.Struct):
    goodput_rps: float


def test_a_better_neighbour_takes_the_place_under_the_name():
    run = Run(Variant(name="fcfs-best-cap", n_run=24), Score(10.0))
    worse = Run(Variant(name="fcfs-best-cap-20", n_run=20), Score(9.0))
    better = Run(Variant(name="fcfs-best-cap-28", n_run=28), Score(11.0))
    other = Run(Variant(name="fcfs-best-cap-shed-28", n_run=28, overdue="shed"), Score(99.0))
    assert _better(run, [worse, other]) is not other
    assert _better(run, [worse, other]).variant.n_run == 24
    chosen = _better(run, [worse, better, other])
    assert (chosen.variant.name, chosen.variant.n_run) == ("fcfs-best-cap", 28)


class Told:
    def phase(self, name):
        pass


class Stage(_Stage):
    """A stage whose runs come from a list."""

    def __init__(self, runs):
        super().__init__(None, [], DemoSettings().span, Told())
        self.left = list(runs)

    async def _run(self, variant):
        return msgspec.structs.replace(self.left.pop(0), variant=variant)


def some_run(**kwargs):
    return Run(Variant(name="x"), Score(1.0), **kwargs)


async def test_noisy_runs_are_made_once_more_and_no_more():
    stage = Stage([some_run(), some_run(noisy=True), some_run(), some_run(noisy=True), some_run(noisy=True), some_run()])
    runs, checked = await stage.play(_variants({"keep": 24, "shed": 24}), backwards=False, neighbours=False)
    assert [run.variant.name for run in runs] == list(NAMES)
    assert [run.noisy for run in runs] == [False, False, True, False]
    assert stage.repeated == ["fcfs-best-cap", "fcfs-best-cap-shed"]
    assert checked == []


async def test_what_broke_is_not_made_again():
    stage = Stage([some_run(noisy=True, broken=["lost"]), some_run(), some_run(), some_run()])
    runs, _ = await stage.play(_variants({"keep": 24, "shed": 24}), backwards=True, neighbours=False)
    assert runs[-1].broken == ["lost"], "made first, told last"
    assert stage.repeated == []
