"""The demo's report as one self-contained HTML file."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from matplotlib.axes import Axes

from hmas.demo.calibration import Calibration
from hmas.demo.decisions import decision_sentences
from hmas.demo.live import LiveRun
from hmas.demo.outcome import (
    HEAD,
    OURS,
    DemoResult,
    class_cells,
    class_head,
    class_rows,
    headline,
    table_row,
    worse_headline,
    worse_sentences,
)
from hmas.demo.settings import FORM_SHARES, UNDECLARED, DemoSettings
from hmas.loadgen.score import running_goodput
from hmas.planning.charts import Line, inline, plot_lines, plot_shares

TTFT_SHOWN = 2.5
"""How far the TTFT chart reaches, in targets: what comes later is late, whoever waits the longest for it."""
TERMS = (
    ("window", "requests that may run on each engine at once; `agents`: statera sets it while the load runs"),
    ("goodput/s, rate", "requests that met both of their targets, per second, and as a share of all scored requests"),
    (
        "ESG/s",
        (
            "expected service gain per second (H-MAS Eq. 6): the tokens of each served request, prompt and weighted output, in full if it "
            "came whole in time, and the less the later it came"
        ),
    ),
    ("TTFT", "time from the arrival of a request to its first token, the wait in the queue included"),
    ("TPOT", "time per output token after the first"),
    ("p50, p95, p99", "half, 95 % and 99 % of the requests took no longer"),
    ("ok", "share of all scored requests that met this one target"),
    ("done/s", "requests that were served per second, in time or not"),
    ("Jain", "Jain's index over the goodput rates of the tenants: 1 if all are served alike, 1/n if one of n gets everything"),
    ("SLO scale", "factor on the targets of H-MAS Table 6, which were measured on other GPUs, so that they suit these engines"),
)
"""The terms of the page: their meaning."""


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
        worse=escape(worse_headline(result, rows)),
        terms="".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in TERMS),
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
        facts="".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _facts(settings, calibration, ours)),
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
    """The share of all requests that had their first token by a multiple of their own target.

    Over seconds up to the latest answer, a run that serves late requests in the end would look slower than one that refuses them.
    """
    for run in result.runs:
        streamed = [r for r in run.results if r.at_s >= result.settings.warmup_s and r.streamed]
        plot_shares(axes, [r.ttft_ms / r.slo.ttft_ms for r in streamed if r.ttft_ms >= 0], len(streamed), "", name=run.variant.name)
    axes.axvline(1.0, color="0.3", linewidth=0.9, linestyle="--")
    axes.annotate("target", (1.0, 0.02), xytext=(3, 0), textcoords="offset points", fontsize=8)
    axes.set_xlim(0.0, TTFT_SHOWN)
    axes.set_xlabel("TTFT over the request's own target")
    axes.set_ylabel("share of streamed requests")


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
    sentences = decision_sentences(run)
    if not sentences:
        return '<p class="bad">none</p>'
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    note = f"{len(run.verdicts)} decisions by meta and {len(run.actions)} control actions by statera; each of them is in demo.json."
    return f"<ul>{items}</ul><p class=soft>{note}</p>"


def _targets(run: LiveRun) -> str:
    """The declared targets of the run's requests in milliseconds."""
    declared = [r.slo for r in run.results if r.declared]
    if not declared:
        return "none"
    parts = []
    for name, values in (("TTFT", sorted(slo.ttft_ms for slo in declared)), ("TPOT", sorted(slo.tpot_ms for slo in declared))):
        parts.append(f"{name} {values[0]:.0f} to {values[-1]:.0f} ms, half of them up to {values[len(values) // 2]:.0f} ms")
    return "; ".join(parts)


def _facts(settings: DemoSettings, calibration: Calibration, run: LiveRun) -> list[tuple[str, str]]:
    slo = (
        f"H-MAS Table 6 and Eq. 14, times the SLO scale of {calibration.slo_scale:g}: {_targets(run)}. "
        f"The mean TPOT target is {settings.tpot_headroom:g} times "
        f"the {calibration.knee.tpot_ms:.1f} ms at window {calibration.knee.n_run}, the smallest with three quarters of the capacity"
    )
    lengths = (
        f"Azure 2023 conversation and code statistics; prompts scaled by {settings.length_scale:g}, "
        f"outputs up to {settings.max_output_tokens} tokens"
    )
    targets = (
        f"TTFT {UNDECLARED.ttft_ms:.0f} ms and TPOT {UNDECLARED.tpot_ms:.0f} ms, in every run, "
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
