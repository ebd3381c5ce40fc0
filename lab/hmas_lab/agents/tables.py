"""The ablation as tables: the same for the terminal and for the documentation page."""

from collections.abc import Mapping
from typing import Any

from hmas_lab.agents.masking import MASKING
from hmas_lab.agents.settings import FIXED_RULES, ORACLE, RULES, TRAINED
from hmas_lab.paper.published import RULES_ROW
from hmas_lab.tables import Table, cell, min_max, plus_minus

Document = Mapping[str, Any]
HEAD = (
    *("way", "beliefs", "goodput/s", "over rules", "verdict", "ESG/s", "over rules", "verdict"),
    *("task right", "length off by", "TTFT p95 started", "TPOT p95", "late or shed"),
)
LIVE_HEAD = (
    *("beliefs", "goodput/s", "over rules", "min..max", "verdict", "ESG/s", "over rules", "min..max", "verdict"),
    *("TTFT p95 started", "TPOT p95 ms", "runs"),
)
LIVE_MEASURES = {"goodput_rps": "goodput", "esg_rate": "ESG"}
SHORT_HEAD = ("load", "way", "measure", "none", "rules", "trained", "oracle", "trained over rules", "share of the oracle's gain")


def simulated_tables(document: Document) -> list[Table]:
    """One table per load, way by way."""
    tables = []
    for ground in document["grounds"]:
        places = [place for place in document["summary"] if place["load"] == ground["load"]]
        rows = [_row(place["way"], row) for place in places for row in place["beliefs"]]
        settings = document["settings"]
        title = (
            f"{document['fleet']} at {ground['load']:g} of capacity ({ground['calibration']['mean_rps']:.2f} requests/s in bursts of "
            f"{settings['high']:g} and {settings['low']:g}), {settings['seeds']} seeds of {settings['duration_s']:g} s; "
            f"{_window(ground)}SLOs of Table 6 x {ground['calibration']['slo_scale']:.3g}"
        )
        tables.append(Table(title, HEAD, rows))
    return tables


def _window(ground: Mapping[str, Any]) -> str:
    return f"window of the static policies {ground['window']}, " if ground["window"] else ""


def _row(way: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    goodput, esg = row["goodput_rps"], row["esg_rate"]
    return (
        *(way, row["belief"], plus_minus(goodput, 2), *_over(goodput)),
        *(plus_minus(esg, 0), *_over(esg)),
        *(_plain(row.get("task_accuracy"), 2), _factor(row.get("length_factor"))),
        *(_plain(row["ttft_ms_started_p95"], 0), _plain(row["tpot_ms_p95"], 1), _plain(row["shed_rate"], 3)),
    )


def short_table(document: Document) -> Table:
    """What the paper's row of its ablation says: goodput and ESG by belief."""
    rows = []
    for place in document["summary"]:
        found = {row["belief"]: row for row in place["beliefs"]}
        if not {RULES, TRAINED} <= set(found):
            continue
        for measure, words, digits in (("goodput_rps", "goodput/s", 2), ("esg_rate", "ESG/s", 0)):
            cells = [plus_minus(found[name][measure], digits) if name in found else "" for name in ("none", RULES, TRAINED, ORACLE)]
            over = found[TRAINED][measure][f"over_{RULES}"]
            said = f"{plus_minus(over, 3)} ({over['verdict']})"
            rows.append((f"{place['load']:g}", place["way"], words, *cells, said, _gained(found, measure)))
    return Table("What the agents are worth", SHORT_HEAD, rows)


def _gained(found: Mapping[str, Mapping[str, Any]], measure: str) -> str:
    """How much of what the truth would bring over the rules the trained models bring; only where it brings anything."""
    if ORACLE not in found or found[ORACLE][measure][f"over_{RULES}"]["verdict"] != "better":
        return ""
    rules, trained, oracle = (found[name][measure]["mean"] for name in (RULES, TRAINED, ORACLE))
    return f"{(trained - rules) / (oracle - rules):.0%}"


def simulated_verdicts(document: Document) -> list[str]:
    """In words, way by way and load by load, what the trained models and the truth bring over the rules."""
    lines = []
    for place in document["summary"]:
        found = {row["belief"]: row for row in place["beliefs"]}
        parts = []
        for name, words in ((TRAINED, "trained models"), (ORACLE, "the truth"), ("none", "no agents")):
            if name in found and RULES in found:
                parts += [f"{words} {_said(found[name])}"]
        if parts:
            lines.append(f"{place['way']} at {place['load']:g} of capacity, over rules and statistics: {'; '.join(parts)}.")
    return lines


def _said(row: Mapping[str, Any]) -> str:
    goodput, esg = row["goodput_rps"][f"over_{RULES}"], row["esg_rate"][f"over_{RULES}"]
    return f"{goodput['mean']:.3f} x goodput ({goodput['verdict']}), {esg['mean']:.3f} x ESG ({esg['verdict']})"


def paper_table(document: Document) -> Table:
    """Table 2's row of the paper beside ours: what is left of each figure where rules stand in for the trained models."""
    rows = []
    for place in document["summary"]:
        found = {row["belief"]: row for row in place["beliefs"]}
        for belief in (RULES, FIXED_RULES, "none"):
            if {belief, TRAINED} <= set(found):
                ours = [_ratio(found[belief], found[TRAINED], name) for name in ("esg_rate", "ttft_ms_p95", "tpot_ms_p95", "goodput_rps")]
                verdicts = [found[belief][name][f"over_{TRAINED}"]["verdict"] for name in ("esg_rate", "goodput_rps")]
                rows.append((f"{place['load']:g}", place["way"], belief, *ours, *verdicts))
    rows.append(("", "the paper's", "rules and statistics", *(f"{value:g}" for value in RULES_ROW), "", ""))
    head = ("load", "way", "beliefs", "ESG", "TTFT p95", "TPOT p95", "goodput", "verdict on ESG", "verdict on goodput")
    title = "Each figure over that with the trained models (Table 2's last row); TTFT p95 with requests that never started"
    return Table(title, head, rows)


def _ratio(row: Mapping[str, Any], base: Mapping[str, Any], measure: str) -> str:
    below = base[measure]["mean"]
    return f"{row[measure]['mean'] / below:.2f}" if below else ""


def masking_table(document: Document) -> Table:
    """How many dispatches had the agents' answer, by load (Fig. 12)."""
    rows = [
        (f"{place['load']:g}", place["way"], *(f"{row[name]['mean']:.1%}" for name in MASKING), f"{row['goodput_rate']['mean']:.3f}")
        for place in document["summary"]
        for row in place["beliefs"]
        if row["belief"] == TRAINED and all(name in row for name in MASKING)
    ]
    answer_ms = 1000.0 * document["settings"]["answer_s"]
    head = ("load", "way", "sent at once", f"waited less than {answer_ms:g} ms", "sent with the answer", "in targets")
    return Table(f"Dispatches by what was known of the request, with answers that take {answer_ms:g} ms", head, rows)


def live_table(document: Document) -> Table:
    """One row per arm of the live ablation."""
    found, settings = document["summary"], document["settings"]
    noise = ", ".join(f"{words} {found['noise'][key]:.1%}" for key, words in LIVE_MEASURES.items() if found["noise"][key] is not None)
    title = (
        f"{len(document['blocks'])} blocks on a real vLLM, all of H-MAS, mean load {settings['load']:g} of capacity, answers x "
        f"{settings['length_scale']:g}; two runs by the rules in one block lay apart by up to: {noise or 'no block tells'}; "
        f"runs rejected: {sum(row['rejected'] for row in found['rows'])}"
    )
    return Table(title, LIVE_HEAD, [_live_row(row) for row in found["rows"]])


def _live_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    cells = [row["arm"]]
    for key, digits in (("goodput_rps", 2), ("esg_rate", 0)):
        value, over = row[key]["spread"], row[key]["over_rules"]
        cells += [f"{value['median']:.{digits}f}", f"{over['median']:.3f}", min_max(over, 3), row[key]["verdict"]]
    return (*cells, cell(row["ttft_ms_started_p95"], 0), cell(row["tpot_ms_p95"], 1), str(row["runs"]))


def live_verdict(document: Document) -> str:
    """What the live ablation says, plainly."""
    parts = []
    for row in document["summary"]["rows"]:
        if row["arm"] in {"trained", "oracle", "none"}:
            said = ", ".join(
                f"{row[key]['over_rules']['median']:.3f} x {words} ({row[key]['verdict']})" for key, words in LIVE_MEASURES.items()
            )
            parts.append(f"{row['arm']}: {said}")
    return "; ".join(parts) + "; each over rules and statistics in the same block, medians."


def _over(value: Mapping[str, Any]) -> tuple[str, str]:
    over = value.get(f"over_{RULES}")
    return (plus_minus(over, 3), over["verdict"]) if over else ("", "")


def _plain(value: Mapping[str, Any] | None, digits: int) -> str:
    return "" if value is None else f"{value['mean']:.{digits}f}"


def _factor(value: Mapping[str, Any] | None) -> str:
    return "" if value is None else f"x {value['mean']:.2f}"
