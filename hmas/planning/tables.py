"""Results of studies as text tables."""

from collections.abc import Sequence
from typing import Any

from hmas.cli.output import table
from hmas.loadgen.score import Score, fairness_words
from hmas.planning.plan import Plan
from hmas.planning.report import Report
from hmas.planning.sweep import Row, means, varied

ROWS_SHOWN = 20


def run_tables(report: Report) -> str:
    """One run: its figures, its tenants and its instances."""
    engines = [
        (name, one.requests, one.good, f"{one.utilisation:.1%}", f"{one.in_flight_mean:.1f}", f"{one.tokens_per_step:.0f}", one.preemptions)
        for name, one in report.instances.items()
    ]
    parts = [
        score_table(report.score),
        class_table(report.score),
        table(["instance", "requests", "good", "utilisation", "in flight", "tokens/step", "preemptions"], engines),
    ]
    return "\n\n".join(parts)


def score_table(figures: Score) -> str:
    """The figures of a run."""
    ttft, tpot = figures.ttft_ms, figures.tpot_ms
    rows = [
        ("goodput", f"{figures.goodput_rps:.3f} requests/s"),
        ("goodput rate", f"{figures.goodput_rate:.4f} ({figures.good} of {figures.submitted})"),
        ("ESG", f"{figures.esg:.0f} ({figures.esg_rate:.0f}/s)"),
        ("TTFT p50 / p95 / p99", f"{ttft.p50:.0f} / {ttft.p95:.0f} / {ttft.p99:.0f} ms, {figures.ttft_compliance:.1%} in time"),
        ("TPOT p50 / p95 / p99", f"{tpot.p50:.1f} / {tpot.p95:.1f} / {tpot.p99:.1f} ms, {figures.tpot_compliance:.1%} in time"),
        ("ended while others arrived", f"{figures.throughput_rps:.3f} requests/s, {figures.output_tps:.0f} tokens/s"),
        ("outcomes", ", ".join(f"{count} {name}" for name, count in figures.outcomes.items() if count) or "none"),
        ("fairness (Jain)", f"{figures.jain_tenants:.3f} over tenants, {figures.jain_classes:.3f} over classes"),
        ("fairness of service", fairness_words(figures.fairness)),
    ]
    return table(["figure", "value"], rows)


def class_table(figures: Score) -> str:
    """The figures of a run by class and by tenant."""
    rows = [
        (kind, name, one.submitted, one.good, f"{one.goodput_rate:.3f}", f"{one.ttft_ms_p95:.0f}")
        for kind, group in (("class", figures.per_class), ("tenant", figures.per_tenant))
        for name, one in group.items()
    ]
    return table(["by", "name", "submitted", "good", "rate", "TTFT p95 ms"], rows)


def sweep_table(rows: Sequence[Row]) -> str:
    """The best settings of a sweep by goodput rate, averaged over seeds."""
    names = varied(rows) or ["policy"]
    ordered = sorted(means(rows), key=lambda one: -one.figures["goodput_rate"])
    head = [*names, "goodput/s", "rate", "ESG/s", "TTFT p95 ms", "TPOT p95 ms", "utilisation"]
    shown = table(head, [[*(str(one.axes[name]) for name in names), *_figures(one)] for one in ordered[:ROWS_SHOWN]])
    return shown if len(ordered) <= ROWS_SHOWN else f"{shown}\nand {len(ordered) - ROWS_SHOWN} more settings, in the files"


def _figures(one: Row) -> list[str]:
    f = one.figures
    shown = (f["goodput_rps"], f["goodput_rate"], f["esg_rate"], f["ttft_ms_p95"], f["tpot_ms_p95"], f["utilisation"])
    forms = ("{:.3f}", "{:.4f}", "{:.0f}", "{:.0f}", "{:.1f}", "{:.1%}")
    return [form.format(value) for form, value in zip(forms, shown, strict=True)]


def plan_text(plan: Plan) -> str:
    """A plan as text: held load, needed instances, the gain of the next instance, and the assumptions."""
    wish = plan.wish
    share = f"{wish.share:.1%}"
    lines = [_held_line(plan), ""]
    lines.append(f"To hold {_load(wish.load, plan.own_rps)} with {share} of requests within their targets:")
    rows: list[tuple[Any, ...]] = []
    for kind in wish.kinds:
        one = plan.needed[kind.name]
        price = f"{one.count * kind.price:.2f}" if kind.price and one.count else ""
        with_it = f"{one.at.share:.2%}" if one.at else ""
        without = f"{'' if one.fewer.whole else '<'}{one.fewer.share:.2%}" if one.fewer else ""
        rows.append((f"{kind.name} alone", str(one.count) if one.count else "never", price, with_it, without))
    if plan.mix is not None:
        rows.append((f"cheapest found: {plan.mix.fleet}", str(plan.mix.instances), f"{plan.mix.price:.2f}", f"{plan.mix.share:.2%}", ""))
    lines.append(table(["fleet", "instances", "price/h", "in targets", "with one fewer"], rows))
    if plan.mix is not None:
        sure = "cheaper ones are too small by the worth of their parts" if plan.mix_sure else "not all cheaper ones were tried"
        lines.append(f"({plan.mixes_tried} mixed fleets simulated; {sure})")
    lines += ["", "What the next instance buys:"]
    head = ["one more", "holds then", "more load", "requests/s", "requests/s per price/h", "goodput/s at the wanted load"]
    next_rows = [
        (
            one.kind,
            f"{one.held.load:.3f}x",
            f"{one.load_gain:+.3f}x",
            f"{one.rate_gain_rps:+.3f}",
            f"{one.rate_gain_per_price:+.3f}" if one.price else "",
            f"{one.goodput_gain_rps:+.3f}",
        )
        for one in plan.next_one
    ]
    lines += [table(head, next_rows), "", "Assumed:"]
    lines += [f"- {text}" for text in plan.assumptions]
    return "\n".join(lines)


def _held_line(plan: Plan) -> str:
    wish, held = plan.wish, plan.held
    fleet = wish.case.fleet
    if held.at is None:
        at = f": {held.fails_at:.3g} times the workload's rate is too much already" if held.fails_at else ""
        return f"{fleet.name} does not hold the targets at any load{at}."
    more = f"; {held.fails_at:.3f} times is too much" if held.fails_at else "; nothing tried was too much"
    return (
        f"{fleet.name} holds {_load(held.load, plan.own_rps)}, with {held.at.share:.2%} of requests within their targets{more} "
        f"({len(held.probes)} runs)."
    )


def _load(load: float, own_rps: float) -> str:
    return f"{load:.3f} times the workload's rate ({load * own_rps:.3f} requests/s)"
