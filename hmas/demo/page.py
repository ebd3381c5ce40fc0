"""The demo's report as one self-contained HTML file."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from hmas.demo.charts import Band, Bar, Series, bar_chart, cdf, legend, line_chart, timeline
from hmas.demo.classes import class_cells, class_head, class_rows, worse_sentences
from hmas.demo.live import LiveRun
from hmas.demo.load import FORM_SHARES, UNDECLARED
from hmas.demo.outcome import HEAD, OURS, DemoResult, chosen_decisions, headline, table_row
from hmas.demo.watching import Sample
from hmas.loadgen.score import running_goodput

DECISIONS = 60
OURS_COLOUR = 3
QUEUE_COLOUR, FLIGHT_COLOUR, WINDOW_COLOUR = 2, 1, 4


def page(result: DemoResult) -> str:
    """The whole page."""
    template = Template(resources.files("hmas.demo").joinpath("page.html").read_text(encoding="utf-8"))
    settings, calibration = result.settings, result.calibration
    names = [(run.variant.name, _colour(result.runs, run)) for run in result.runs]
    ours = result.run(OURS)
    return template.substitute(
        subtitle=escape(
            f"seed {settings.seed}, {settings.engines} embedded engines ({settings.profile} at {settings.speed:g} times its speed), "
            f"{len(ours.results)} requests per run on identical arrivals, {result.elapsed_s:.0f} s in all"
        ),
        headline=escape(headline(result)),
        troubles="".join(f'<p class="bad">{escape(text)}</p>' for text in [*result.broken, *_noise(result.runs)]),
        table=_table(HEAD, [table_row(run) for run in result.runs], ours=OURS),
        bars=bar_chart("Goodput", [_bar(result.runs, run) for run in result.runs], "good requests/s"),
        cdf=_cdf(result),
        legend=legend(names),
        timeline=_timeline(ours),
        timeline_legend=legend([("queue", QUEUE_COLOUR), ("in flight", FLIGHT_COLOUR), ("window n_run, both engines", WINDOW_COLOUR)]),
        running=line_chart("Good requests per second", _running(result), x_label="seconds", y_label="good requests/s"),
        classes=_classes(result),
        decisions=_decisions(ours),
        facts=_facts(result),
        capacity=line_chart(
            "Capacity",
            [Series("throughput", 1, [(p.n_run, p.throughput_rps) for p in calibration.curve])],
            x_label="window n_run per engine",
            y_label="requests/s",
        ),
        sweep=line_chart("Sweep", _sweep(result), x_label="window n_run per engine", y_label="goodput rate", y_max=1.0),
        sweep_legend=legend([("FCFS", 1), ("FCFS with shedding", 2)]),
    )


def _noise(runs: Sequence[LiveRun]) -> list[str]:
    return [
        f"{run.variant.name}: the machine stood still for {run.stood_still_s:.2f} s; this run's latencies are not to be trusted"
        for run in runs
        if run.noisy
    ]


def _colour(runs: Sequence[LiveRun], run: LiveRun) -> int:
    return OURS_COLOUR if run.variant.name == OURS else [r.variant.name for r in runs].index(run.variant.name) % OURS_COLOUR


def _bar(runs: Sequence[LiveRun], run: LiveRun) -> Bar:
    return Bar(run.variant.name, _colour(runs, run), run.score.goodput_rps, f"{run.score.goodput_rps:.2f} ({run.score.goodput_rate:.0%})")


def _cdf(result: DemoResult) -> str:
    series = []
    for run in result.runs:
        scored = [r for r in run.results if r.at_s >= result.settings.warmup_s]
        points = cdf([r.ttft_ms / 1000.0 for r in scored if r.ttft_ms >= 0], max(1, len(scored)))
        series.append(Series(run.variant.name, _colour(result.runs, run), points))
    top = max((x for line in series for x, _ in line.points), default=1.0)
    return line_chart("TTFT", series, x_label="seconds", y_label="share of requests", x_max=top, y_max=1.0)


def _timeline(run: LiveRun) -> str:
    samples = [s for s in run.samples if s.at_s >= 0]
    top = 2.0 * max((s.in_flight + s.queued for s in samples), default=1)
    lines = [
        # A wide-open window at the start would compress the scale of everything else.
        Series("window", WINDOW_COLOUR, [(s.at_s, min(s.n_run, top)) for s in samples]),
        Series("in flight", FLIGHT_COLOUR, [(s.at_s, s.in_flight) for s in samples]),
        Series("queue", QUEUE_COLOUR, [(s.at_s, s.queued) for s in samples]),
    ]
    return timeline("H-MAS over time", lines, _bands(samples), y_label="requests")


def _bands(samples: Sequence[Sample]) -> list[Band]:
    bands: list[Band] = []
    for sample in samples:
        if bands and bands[-1].name == sample.policy:
            bands[-1] = bands[-1]._replace(end=sample.at_s)
        else:
            bands.append(Band(bands[-1].end if bands else 0.0, sample.at_s, sample.policy))
    return bands


def _running(result: DemoResult) -> list[Series]:
    return [
        Series(run.variant.name, _colour(result.runs, run), running_goodput(run.results, 1.0, run.summary.elapsed_s)) for run in result.runs
    ]


def _sweep(result: DemoResult) -> list[Series]:
    return [
        Series(overdue, colour, [(p.n_run, p.goodput_rate) for p in result.sweep if p.overdue == overdue])
        for overdue, colour in (("keep", 1), ("shed", 2))
    ]


def _classes(result: DemoResult) -> str:
    """Good requests by class, and a sentence for each class in which H-MAS is worse."""
    rows = class_rows(result)
    sentences = "".join(f"<p>{escape(text)}</p>" for text in worse_sentences(rows))
    fairness = "".join(
        f"<p class=soft>{escape(run.variant.name)}: Jain over tenants {run.score.jain_tenants:.3f}.</p>" for run in result.runs
    )
    return f"{sentences}{_table(class_head(rows), [class_cells(row) for row in rows], ours='')}{fairness}"


def _decisions(run: LiveRun) -> str:
    chosen = chosen_decisions(run, DECISIONS)
    if not chosen:
        return '<p class="bad">none</p>'
    rows = "".join(
        f"<tr><td>{d.at_s:.1f} s</td><td class=text>{escape(d.source)}</td><td class=text>{escape(f'{d.kind} {d.subject}')}</td>"
        f"<td class=text>{escape(d.before or '-')} → {escape(d.after or '-')}</td><td class='text wrap'>{escape(d.reason)}</td></tr>"
        for d in chosen
    )
    head = "<tr><th>time</th><th class=text>who</th><th class=text>what</th><th class=text>change</th><th class=text>why</th></tr>"
    note = f"{len(run.verdicts)} decisions by meta and {run.actions} control actions by statera lay on the bus; shown: {len(chosen)}."
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table><p class=soft>{note}</p>"


def _facts(result: DemoResult) -> str:
    settings, calibration = result.settings, result.calibration
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
    facts = [
        (
            "capacity",
            f"{calibration.capacity_rps:.1f} requests/s, measured on a backlog in virtual time with the same engine model",
        ),
        ("arrivals", f"{calibration.mean_rps:.1f} requests/s on average, {settings.load:.0%} of capacity"),
        ("bursts", f"{settings.period_s:g} s long cycles, half at 1.8 times and half at 0.2 times the mean rate"),
        ("scored", f"{settings.periods} whole cycles after a warm-up of {settings.warmup_s:g} s"),
        ("bodies", f"{bodies}; half without max_tokens; two tenants"),
        ("declared targets", f"half of the requests: {slo}"),
        ("the others are judged by", targets),
        ("lengths", lengths),
        (
            "known to the gateway",
            "what the body and its headers say; the true length is known to the engines alone",
        ),
    ]
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], *, ours: str) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = ""
    for row in rows:
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in row)
        body += f"<tr{' class=ours' if row[0] == ours else ''}>{cells}</tr>"
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
