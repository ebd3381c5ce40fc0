"""What H-MAS is to reach, what it reaches, and whether that is enough. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hmas_lab.paper.arms import DEFAULT, PRODUCT, SGLANG
from hmas_lab.paper.figures import has, of_product, value
from hmas_lab.paper.published import ESG_OVER_ENGINE, ESG_OVER_SGLANG, GOODPUT_OVER_ENGINE, NO_HARM, OF_BEST_FIXED, TABLE_1
from hmas_lab.paper.scenarios import TOP_LOAD

LOW = "low"
LATENCIES = {"ttft_ms_mean": "TTFT mean", "ttft_ms_p95": "TTFT p95", "tpot_ms_mean": "TPOT mean", "tpot_ms_p95": "TPOT p95"}
Places = Sequence[Mapping[str, Any]]


def goals(places: Places) -> list[dict[str, Any]]:
    """Every goal in every place that it speaks of: `ours` with half its interval where it has one, `wanted`, and whether it is `reached`.

    A goal counts by the mean over seeds. Over a base of nothing (`base_is_zero`) anything is enough, and nothing is not.
    """
    return [
        goal for place in places if has(place, PRODUCT) for goal in (*_ratios(place), *_slices(place), *_hindsight(place), *_low(place))
    ]


def _goal(place: Mapping[str, Any], name: str, found: Mapping[str, Any], wanted: str, *, reached: bool) -> dict[str, Any]:
    return {
        "goal": name,
        "model": place["model"],
        "scenario": place["scenario"],
        "ours": found["mean"],
        "half": found.get("half"),
        "base_is_zero": found.get("base_is_zero", False),
        "wanted": wanted,
        "reached": reached,
    }


def _ratios(place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    least = GOODPUT_OVER_ENGINE[0]
    found = of_product(place, DEFAULT, "goodput_rps")
    if found is not None and place["scenario"] != LOW:
        reached = found["mean"] >= least or (found["base_is_zero"] and value(place, PRODUCT, "goodput_rps") > 0.0)
        yield _goal(place, "goodput over the engine default", found, _wanted(place, least), reached=reached)
    if place["scenario"] != TOP_LOAD:
        return
    for base, words, wanted in ((SGLANG, "SGLang-like", ESG_OVER_SGLANG), (DEFAULT, "the engine default", ESG_OVER_ENGINE)):
        found = of_product(place, base, "esg_rate")
        if found is not None:
            reached = found["mean"] >= wanted
            yield _goal(place, f"ESG over {words} at the top load", found, f"{wanted:g} or more", reached=reached)


def _wanted(place: Mapping[str, Any], least: float) -> str:
    """What is wanted over the engine default, and where all requests in time would not be that much, what they would be."""
    share = value(place, DEFAULT, "goodput_rate")
    most = f" (all in time would be {1.0 / share:.2f})" if share * least > 1.0 else ""
    return f"{least:g} or more{most}"


def _slices(place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    published = TABLE_1.get(place["scenario"])
    if published is not None:
        wanted = published[PRODUCT].ttft_compliance
        ours = place["arms"][PRODUCT]["figures"]["ttft_compliance"]
        yield _goal(place, "TTFT compliance on the slice", ours, f"{wanted:.2%} or more", reached=ours["mean"] >= wanted)


def _hindsight(place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    best = place["best_fixed"]
    found = of_product(place, best, "goodput_rps") if best else None
    if found is None:
        return
    name = "goodput over the best fixed policy in hindsight"
    if place["shifts"]:
        yield _goal(place, name, found, "more than 1 (the workload shifts)", reached=found["mean"] > 1.0)
    else:
        reached = found["mean"] >= OF_BEST_FIXED
        yield _goal(place, name, found, f"{OF_BEST_FIXED:g} or more", reached=reached)


def _low(place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if place["scenario"] != LOW or not has(place, DEFAULT):
        return
    for figure, words in LATENCIES.items():
        direct = value(place, DEFAULT, figure)
        more = value(place, PRODUCT, figure) / direct - 1.0 if direct else 0.0
        # A rounding's worth beyond the limit is not beyond it.
        reached = more <= NO_HARM + 1e-9
        yield _goal(place, f"{words} at low load, over direct", {"mean": 1.0 + more}, f"{1.0 + NO_HARM:g} or less", reached=reached)
