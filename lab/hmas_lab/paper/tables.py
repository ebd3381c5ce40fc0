"""The evaluation as tables: the same for the terminal and for the documentation page."""

from collections.abc import Mapping, Sequence
from typing import Any

from hmas_lab.paper.arms import ABLATIONS, BASELINES, DEFAULT, PRODUCT, STRONG, policy_of
from hmas_lab.paper.figures import has, of_product, value
from hmas_lab.paper.goals import LATENCIES, LOW
from hmas_lab.paper.published import TABLE_1, TABLE_2, TABLE_4
from hmas_lab.paper.scenarios import SLICES
from hmas_lab.tables import Table, plus_minus

Document = Mapping[str, Any]
Place = Mapping[str, Any]
Rows = list[tuple[str, ...]]
MEANINGFUL = 10.0
"""A ratio beyond this says only that the base has collapsed."""
HEAD = (
    *("arm", "goodput/s", "in targets", "over default", "over FCFS+cap+shed", "ESG/s", "ESG over default"),
    *(
        "TTFT in time",
        "TPOT in time",
        "TTFT p95 s",
        "TPOT p95 ms",
        "short",
        "long",
        "Jain classes / tenants",
        "mismatch mean / p95",
        "dropped",
    ),
)


def goals_table(document: Document) -> Table:
    """Every goal, ours beside it, those that are missed first."""
    rows: Rows = [
        (
            *("reached" if goal["reached"] else "MISSED", goal["goal"], goal["model"], goal["scenario"]),
            *(ratio_words({"mean": goal["ours"], "half": goal["half"], "base_is_zero": goal.get("base_is_zero", False)}), goal["wanted"]),
        )
        for goal in sorted(document["goals"], key=lambda one: (one["reached"], one["goal"]))
    ]
    reached = sum(goal["reached"] for goal in document["goals"])
    title = f"{reached} of {len(document['goals'])} goals reached, by means over {document['settings']['seeds']} seeds"
    return Table(title, ("", "goal", "model", "scenario", "ours", "wanted"), rows)


def grounds_table(document: Document) -> Table:
    """What each scenario stands on."""
    rows: Rows = [
        (
            *(ground["model"], ground["scenario"], document["scenarios"][ground["scenario"]], f"{ground['capacity_rps']:.2f}"),
            *(f"{ground['placed']['load']:.2f}", _anchor(ground["placed"]), f"{ground['rate_rps']:.2f}", f"{ground['span_s']:g}"),
            *(f"{ground['slo_scale']:g}", ", ".join(f"{arm} {window}" for arm, window in ground["windows"].items())),
        )
        for ground in document["grounds"]
    ]
    head = (
        "model",
        "scenario",
        "what",
        "capacity/s",
        "load",
        "placed by the engine default: here / paper",
        "requests/s",
        "span s",
        "SLOs of Table 6 x",
        "windows of the tuned baselines",
    )
    return Table("Where each scenario stands: capacity measured on a backlog of such requests, rates in requests per second", head, rows)


def _anchor(placed: Mapping[str, Any]) -> str:
    return f"{placed['figure']} {placed['ours']:.3f} / {placed['published']:.3f}" if placed["figure"] else "-"


def place_tables(document: Document) -> list[Table]:
    """One table per model and scenario, every arm a row, the best goodput first."""
    return [_place_table(place, document["fleets"][place["model"]]) for place in document["summary"]]


def _place_table(place: Place, fleet: str) -> Table:
    arms = sorted(place["arms"].items(), key=lambda item: -item[1]["figures"]["goodput_rps"]["mean"])
    at = f"{place['load']:.2f} of capacity ({place['rate_rps']:.2f} requests/s, {place['span_s']:g} s)"
    best = policy_of(place["best_fixed"]) or "not tried"
    title = f"{place['model']} ({fleet}), {place['scenario']} at {at}, {place['seeds']} seeds; best fixed policy in hindsight: {best}"
    return Table(title, HEAD, [_arm_row(name, arm) for name, arm in arms])


def _arm_row(name: str, arm: Mapping[str, Any]) -> tuple[str, ...]:
    f = arm["figures"]
    mean = {key: figure["mean"] for key, figure in f.items()}
    marked = name if arm["seeds"] > 2 else f"{name} ({arm['seeds']} seeds)"
    return (
        *(marked, plus_minus(f["goodput_rps"], 2), f"{mean['goodput_rate']:.3f}", _over(arm, DEFAULT, "goodput_rps")),
        *(_over(arm, STRONG, "goodput_rps"), f"{mean['esg_rate']:.0f}", _over(arm, DEFAULT, "esg_rate")),
        *(f"{mean['ttft_compliance']:.3f}", f"{mean['tpot_compliance']:.3f}", f"{mean['ttft_ms_p95'] / 1000.0:.2f}"),
        *(f"{mean['tpot_ms_p95']:.1f}", *(f"{arm['classes'][size]['mean']:.3f}" for size in ("short", "long"))),
        *(
            f"{mean['jain_classes']:.3f} / {mean['jain_tenants']:.3f}",
            f"{mean['mismatch_mean']:.2f} / {mean['mismatch_p95']:.2f}",
            f"{mean['shed_rate']:.3f}",
        ),
    )


def _over(arm: Mapping[str, Any], base: str, figure: str) -> str:
    found = arm["over"].get(base, {}).get(figure)
    if found is None:
        return ""
    return ratio_words(found)


def ratio_words(found: Mapping[str, Any]) -> str:
    """A ratio, as far as it says anything: over next to nothing it is only large."""
    if found["base_is_zero"]:
        return "base is 0"
    return f"> {MEANINGFUL:g}" if found["mean"] > MEANINGFUL else plus_minus(found, 3)


def hindsight_table(document: Document) -> Table:
    """H-MAS beside the best fixed policy of each place, and beside the strong baseline."""
    rows: Rows = []
    for place in document["summary"]:
        best = place["best_fixed"]
        found = of_product(place, best, "goodput_rps") if best else None
        if found is None:
            continue
        strong = of_product(place, STRONG, "goodput_rps")
        default = of_product(place, DEFAULT, "goodput_rps")
        static = of_product(place, place["best_static"], "goodput_rps")
        longs = [place["arms"][arm]["classes"]["long"]["mean"] if arm in place["arms"] else None for arm in (PRODUCT, best, STRONG)]
        rows.append(
            (
                *(place["model"], place["scenario"], "yes" if place["shifts"] else "", policy_of(best)),
                *(
                    plus_minus(found, 3),
                    found["verdict"],
                    f"{policy_of(place['best_static'])}: {ratio_words(static)}" if static else "",
                    ratio_words(strong) if strong else "",
                    ratio_words(default) if default else "",
                ),
                " / ".join("-" if share is None else f"{share:.3f}" for share in longs),
                f"{value(place, PRODUCT, 'switches'):.1f}",
            )
        )
    head = (
        *("model", "scenario", "shifts", "best fixed policy", "H-MAS over it", "verdict", "over the best but `robust-edf`"),
        *("over FCFS+cap+shed", "over the engine default"),
        *("long requests in time: H-MAS / best fixed / FCFS+cap+shed", "switches"),
    )
    return Table("Goodput of H-MAS over the best fixed policy in hindsight", head, rows)


def slices_table(document: Document) -> Table:
    """Table 1 of the paper beside ours."""
    rows: Rows = []
    for place in document["summary"]:
        if place["scenario"] not in SLICES:
            continue
        for arm in (DEFAULT, PRODUCT):
            if not has(place, arm):
                continue
            theirs = TABLE_1[place["scenario"]][arm]
            ours = [value(place, arm, name) for name in ("mismatch_mean", "mismatch_p95", "ttft_compliance", "goodput_rate")]
            rows.append(
                (
                    *(place["model"], place["scenario"], arm, f"{ours[0]:.2f} / {ours[1]:.2f}", f"{ours[2]:.2%}", f"{ours[3]:.4f}"),
                    *(f"{theirs.mismatch_mean:.3f} / {theirs.mismatch_p95:.3f}", f"{theirs.ttft_compliance:.2%}", f"{theirs.goodput:.4f}"),
                )
            )
    head = ("model", "slice", "arm", "mismatch mean / p95", "TTFT in time", "goodput rate", *("paper: mismatch", "TTFT in time", "goodput"))
    return Table("Slices of one time scale (Table 1); the paper's engine baseline is vLLM", head, rows)


def ablation_table(document: Document) -> Table:
    """Table 2 of the paper beside ours, each over H-MAS."""
    rows: Rows = []
    for place in document["summary"]:
        if not has(place, PRODUCT):
            continue
        for arm in ABLATIONS:
            if not has(place, arm):
                continue
            ours = [_share(place, arm, name) for name in ("esg_rate", "ttft_ms_p95_all", "tpot_ms_p95", "goodput_rps")]
            theirs = TABLE_2.get(arm)
            rows.append((place["model"], place["scenario"], arm, *ours, *(f"{x:g}" for x in theirs or ()), *([""] * (0 if theirs else 4))))
    head = (
        *("model", "scenario", "variant", "ESG", "TTFT p95", "TPOT p95", "goodput"),
        *("paper: ESG", "TTFT p95", "TPOT p95", "goodput"),
    )
    return Table("Parts taken out (Table 2), each figure over that of H-MAS; TTFT p95 with those that never started", head, rows)


def _share(place: Place, arm: str, figure: str) -> str:
    whole = value(place, PRODUCT, figure)
    return f"{value(place, arm, figure) / whole:.2f}" if whole else ""


def robustness_table(document: Document) -> Table:
    """Table 4 of the paper beside ours."""
    rows: Rows = []
    names = ("drop_1_3", "recovery_3_2", "cv_ttft", "esg_peak_over_mean", "cv_esg", "esg_mean")
    for place in document["summary"]:
        for arm in (*BASELINES, PRODUCT):
            if not has(place, arm) or "drop_1_3" not in place["arms"][arm]["figures"]:
                continue
            ours = [value(place, arm, name) for name in names]
            theirs = TABLE_4.get(place["scenario"], {}).get(arm)
            phases = " / ".join(f"{value(place, arm, f'phase{number}'):.3f}" for number in (1, 2, 3))
            rows.append((place["model"], place["scenario"], arm, phases, *_robust(ours), *(_robust(theirs) if theirs else [""] * 6)))
    shown = ("drop I to III", "III over II", "CV TTFT", "ESG peak/mean", "CV ESG", "ESG/s")
    head = ("model", "scenario", "arm", "in targets I / II / III", *shown, *(f"paper: {name}" for name in shown))
    return Table("Robustness (Table 4): shares of requests in targets by phase, variation over windows of 10 s", head, rows)


def _robust(values: Sequence[float]) -> list[str]:
    return [f"{values[0]:.1%}", *(f"{one:.2f}" for one in values[1:5]), f"{values[5]:.0f}"]


def decomposition_table(document: Document) -> Table:
    """Fig. 9's parts of ESG, over the run and its most congested tenth."""
    rows: Rows = []
    parts = ("throughput", "ttft", "tpot", "unserved", "late_ttft", "late_tpot")
    for place in document["summary"]:
        if place["scenario"] not in {"phases", "azure-600"}:
            continue
        for arm in (*BASELINES, PRODUCT):
            if has(place, arm):
                cells = [f"{value(place, arm, f'{when}_{part}'):.0f}" for when in ("peak", "run") for part in parts]
                rows.append((place["model"], place["scenario"], arm, *cells))
    words = ("gained", "with TTFT kept", "with TPOT kept", "lost: not served", "lost: TTFT", "lost: TPOT")
    head = ("model", "scenario", "arm", *(f"{when}: {word}" for when in ("peak", "run") for word in words))
    return Table("ESG a second by parts (Fig. 9), by arrival: in the most congested tenth of the run, and over all of it", head, rows)


def low_table(document: Document) -> Table:
    """No harm at low load: latencies over those of the engine default."""
    rows: Rows = []
    for place in document["summary"]:
        if place["scenario"] == LOW and has(place, DEFAULT, PRODUCT):
            cells = [
                f"{value(place, PRODUCT, name):.2f} / {value(place, DEFAULT, name):.2f} "
                f"({value(place, PRODUCT, name) / value(place, DEFAULT, name) - 1.0:+.2%})"
                for name in LATENCIES
            ]
            rows.append((place["model"], *cells))
    return Table("Low load (0.3 of capacity): H-MAS / direct, milliseconds", ("model", *LATENCIES.values()), rows)
