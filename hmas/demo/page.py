"""The demo's report as one self-contained HTML file."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from matplotlib.axes import Axes

from hmas.demo.calibration import Calibration
from hmas.demo.live import LiveRun
from hmas.demo.outcome import (
    HEAD,
    OURS,
    DemoResult,
    chosen_decisions,
    class_cells,
    class_head,
    class_rows,
    headline,
    table_row,
    worse_sentences,
)
from hmas.demo.settings import FORM_SHARES, UNDECLARED, DemoSettings
from hmas.loadgen.score import running_goodput
from hmas.planning.charts import Line, inline, plot_lines, plot_shares

DECISIONS = 60
DECISION_HEAD = ("time", "who", "what", "change", "why")


def page(result: DemoResult) -> str:
    """The whole page."""
    template = Template(resources.files("hmas.demo").joinpath("page.html").read_text(encoding="utf-8"))
    settings, calibration, runs = result.settings, result.calibration, result.runs
    ours, rows = result.run(OURS), class_rows(result)
    capacity = [Line("", [(p.n_run, p.throughput_rps) for p in calibration.curve])]
    sweep = [
        Line(name, [(p.n_run, p.goodput_rate) for p in result.sweep if p.overdue == overdue])
        for name, overdue in (("FCFS", "keep"), ("FCFS with shedding", "shed"))
    ]
    running = [Line(run.variant.name, running_goodput(run.results, 1.0, run.summary.elapsed_s)) for run in runs]
    fairness = "".join(f"<p class=soft>{escape(run.variant.name)}: Jain over tenants {run.score.jain_tenants:.3f}.</p>" for run in runs)
    return template.substitute(
        subtitle=escape(
            f"seed {settings.seed}, {settings.engines} embedded engines ({settings.profile} at {settings.speed:g} times its speed), "
            f"{len(ours.results)} requests per run on identical arrivals, {result.elapsed_s:.0f} s in all"
        ),
        headline=escape(headline(result)),
        troubles="".join(f'<p class="bad">{escape(text)}</p>' for text in [*result.broken, *_noise(runs)]),
        table=_table(HEAD, [table_row(run) for run in runs], ours=OURS),
        bars=inline(lambda axes: _bars(axes, runs)),
        cdf=inline(lambda axes: _ttft(axes, result)),
        timeline=inline(lambda axes: _timeline(axes, ours)),
        running=inline(lambda axes: plot_lines(axes, running, x_label="seconds", y_label="good requests/s")),
        classes="".join(f"<p>{escape(text)}</p>" for text in worse_sentences(rows))
        + _table(class_head(rows), [class_cells(row) for row in rows])
        + fairness,
        decisions=_decisions(ours),
        facts="".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _facts(settings, calibration)),
        capacity=inline(lambda axes: plot_lines(axes, capacity, x_label="window n_run per engine", y_label="requests/s")),
        sweep=inline(lambda axes: plot_lines(axes, sweep, x_label="window n_run per engine", y_label="goodput rate")),
    )


def _noise(runs: Sequence[LiveRun]) -> list[str]:
    return [
        f"{run.variant.name}: the machine stood still for {run.stood_still_s:.2f} s; this run's latencies are not to be trusted"
        for run in runs
        if run.noisy
    ]


def _bars(axes: Axes, runs: Sequence[LiveRun]) -> None:
    drawn = axes.bar([run.variant.name for run in runs], [run.score.goodput_rps for run in runs])
    axes.bar_label(drawn, [f"{run.score.goodput_rps:.2f} ({run.score.goodput_rate:.0%})" for run in runs])
    axes.set_ylabel("good requests/s")


def _ttft(axes: Axes, result: DemoResult) -> None:
    for run in result.runs:
        scored = [r for r in run.results if r.at_s >= result.settings.warmup_s]
        plot_shares(axes, [r.ttft_ms / 1000.0 for r in scored if r.ttft_ms >= 0], len(scored), "seconds", name=run.variant.name)
    axes.set_ylabel("share of requests")


def _timeline(axes: Axes, run: LiveRun) -> None:
    samples = [s for s in run.samples if s.at_s >= 0]
    top = 2.0 * max((s.in_flight + s.queued for s in samples), default=1)
    lines = [
        # A wide-open window at the start would compress the scale of everything else.
        Line("window n_run, all engines", [(s.at_s, min(s.n_run, top)) for s in samples]),
        Line("in flight", [(s.at_s, s.in_flight) for s in samples]),
        Line("queue", [(s.at_s, s.queued) for s in samples]),
    ]
    plot_lines(axes, lines, x_label="seconds", y_label="requests")
    for before, sample in zip([None, *samples], samples, strict=False):
        if before is None or before.policy != sample.policy:
            axes.axvline(sample.at_s, color="0.5", linewidth=0.8)
            axes.annotate(sample.policy, (sample.at_s, 1.0), xycoords=("data", "axes fraction"), fontsize=8, va="top")


def _decisions(run: LiveRun) -> str:
    chosen = chosen_decisions(run, DECISIONS)
    if not chosen:
        return '<p class="bad">none</p>'
    rows = [(f"{d.at_s:.1f} s", d.source, f"{d.kind} {d.subject}", f"{d.before or '-'} → {d.after or '-'}", d.reason) for d in chosen]
    note = f"{len(run.verdicts)} decisions by meta and {len(run.actions)} control actions by statera lay on the bus; shown: {len(chosen)}."
    return f'<div class="text">{_table(DECISION_HEAD, rows)}</div><p class=soft>{note}</p>'


def _facts(settings: DemoSettings, calibration: Calibration) -> list[tuple[str, str]]:
    slo = (
        f"H-MAS Table 6 and Eq. 14, scaled by {calibration.slo_scale:g}: the mean TPOT target is {settings.tpot_headroom:g} times "
        f"the {calibration.knee.tpot_ms:.1f} ms at window {calibration.knee.n_run}, the smallest with three quarters of the capacity"
    )
    lengths = (
        f"Azure 2023 conversation and code statistics; prompts scaled by {settings.length_scale:g}, "
        f"outputs up to {settings.max_output_tokens} tokens"
    )
    targets = (
        f"{UNDECLARED.ttft_ms / 1000:g} s to the first token and {UNDECLARED.tpot_ms:g} ms a token, in every run, "
        "whatever the gateway takes their targets to be"
    )
    bodies = ", ".join(f"{share:.0%} {name}" for name, share in FORM_SHARES.items())
    return [
        ("capacity", f"{calibration.capacity_rps:.1f} requests/s, measured on a backlog in virtual time with the same engine model"),
        ("arrivals", f"{calibration.mean_rps:.1f} requests/s on average, {settings.load:.0%} of capacity"),
        ("bursts", f"{settings.period_s:g} s long cycles, half at 1.8 times and half at 0.2 times the mean rate"),
        ("scored", f"{settings.periods} whole cycles after a warm-up of {settings.warmup_s:g} s"),
        ("bodies", f"{bodies}; half without max_tokens; two tenants"),
        ("declared targets", f"half of the requests: {slo}"),
        ("the others are judged by", targets),
        ("lengths", lengths),
        ("known to the gateway", "what the body and its headers say; the true length is known to the engines alone"),
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], *, ours: str = "") -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = ""
    for row in rows:
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in row)
        body += f"<tr{' class=ours' if row[0] == ours else ''}>{cells}</tr>"
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
