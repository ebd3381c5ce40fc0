"""Loads that are placed by what the paper's engine baseline does at them."""

import pytest
from hmas_lab.paper.placing import HALVINGS, LEAST, MOST, Site, anchor_of, place
from hmas_lab.paper.published import ANCHORS
from hmas_lab.paper.rows import Row
from hmas_lab.paper.scenarios import SCENARIOS

NEAR = (MOST - LEAST) / 2**HALVINGS


def fleet(figure_at):
    """Engines whose default serves `figure_at(site, load)`; with all that was asked of them."""
    asked = []

    def run(tried):
        asked.append(list(tried))
        return [
            Row(
                model=site.model,
                scenario=site.scenario,
                arm="engine-default",
                seed=0,
                window=0,
                code="",
                steered=False,
                figures={ANCHORS[site.scenario].figure: figure_at(site, load)},
            )
            for site, load in tried
        ]

    return run, asked


def test_the_load_is_found_at_which_the_default_fares_as_published():
    sites = [Site("a", "burst"), Site("b", "burst"), Site("a", "semantic")]
    # Shares that fall from 1 at half the capacity, and a drop that rises to 1.2 at the most.
    falls = {"a": 1.0, "b": 2.0}

    def figure_at(site, load):
        return 1.2 * (load - LEAST) if site.scenario == "semantic" else 1.0 - falls[site.model] * (load - LEAST)

    run, asked = fleet(figure_at)
    found = place(sites, run)
    for site, slope in zip(sites, (1.0, 2.0, -1.2), strict=True):
        anchor = ANCHORS[site.scenario]
        exact = LEAST + ((1.0 - anchor.value) / slope if slope > 0 else anchor.value / 1.2)
        assert found[site].load == pytest.approx(exact, abs=NEAR)
        assert found[site].ours == pytest.approx(anchor.value, abs=NEAR * abs(slope))
        assert (found[site].figure, found[site].published) == (anchor.figure, anchor.value)
    assert [len(step) for step in asked] == [len(sites)] * HALVINGS


@pytest.mark.parametrize(("share", "end"), [(1.0, MOST), (0.0, LEAST)])
def test_a_default_that_never_fares_so_ends_at_the_bound(share, end):
    run, asked = fleet(lambda _site, _load: share)
    place([Site("a", "shift")], run)
    assert asked[-1][0][1] == pytest.approx(end, abs=NEAR)


def test_without_an_anchor_nothing_is_run():
    assert place([], fleet(lambda _site, _load: 0.0)[0]) == {}
    assert anchor_of("load-50") == ""
    assert anchor_of("burst") == "burst"
    assert anchor_of("azure-300") == anchor_of("azure-1200") == "azure-1200"


def test_what_lends_its_load_has_the_same_requests():
    for name, scenario in SCENARIOS.items():
        if scenario.placed_as:
            assert SCENARIOS[scenario.placed_as].mix == scenario.mix, name
            assert SCENARIOS[scenario.placed_as].placed_as == ""
