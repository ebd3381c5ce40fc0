"""What people type, and tables as they read them."""

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hmas.cli.main import cli
from hmas.cli.output import clock_words, duration_words, exit_where_broken, table
from hmas.cli.targets import parse_targets
from hmas.cli.values import Duration, Pair
from hmas.engines.sim.profile import faster, load_profile


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("10min", 600), ("2h", 7200), ("1h30m", 5400), ("1d", 86_400), ("0.5h", 1800), (" 5M ", 300)],
)
def test_durations(text, seconds):
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-5m", "0s", "ten minutes", "10 m", "5mm", "400d", "1h 30m", "nan"])
def test_what_is_no_duration(text):
    with pytest.raises(click.BadParameter, match="is no duration; allowed: such as 90s"):
        Duration().convert(text, None, None)


@given(st.integers(1, 1000), st.sampled_from("smh"))
def test_a_duration_in_words_names_a_unit(number, unit):
    seconds = Duration().convert(f"{number}{unit}", None, None)
    assert duration_words(seconds).split()[1] in {"s", "min", "h", "d"}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.25, "0.2 s"),
        (45, "45 s"),
        (90, "1.5 min"),
        (120, "2 min"),
        (9000, "2.5 h"),
        (36 * 3600, "1.5 d"),
        (172_800, "2 d"),
        (float("inf"), "-"),
        (-1, "-"),
    ],
)
def test_durations_in_words(seconds, words):
    assert duration_words(seconds) == words


def test_moments_in_words():
    assert clock_words(0.0) == "1970-01-01 00:00:00Z"


def test_parameters():
    assert Pair().convert("theta=500", None, None) == ("theta", 500.0)
    assert Pair().convert("theta=-1.5e2", None, None) == ("theta", -150.0)
    for text in ("theta", "=5", "theta=", "theta=x", "theta=nan", "theta=-inf", "theta=1e400"):
        with pytest.raises(click.BadParameter, match="is no parameter; allowed: NAME=NUMBER"):
            Pair().convert(text, None, None)


def options_of(command, context):
    """Every option of a command and of those below it."""
    yield from command.params
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        yield from options_of(command.get_command(context, name), context)


def test_no_option_takes_a_number_that_is_not_finite():
    options = [one for one in options_of(cli, click.Context(cli)) if isinstance(one.type, click.FloatRange)]
    assert len(options) > 15
    for option in options:
        for text in ("nan", "inf"):
            with pytest.raises(click.BadParameter, match=r"is not finite|is not in the range"):
                option.type.convert(text, option, None)


def test_tables_line_up():
    text = table(["name", "n"], [("a", 5), ("longer", 12.5), ("c", None)])
    assert text.splitlines() == ["name       n", "a          5", "longer  12.5", "c          -"]
    assert table(["name", "n"], []).splitlines() == ["name  n"]


def test_engines_of_every_form():
    targets = parse_targets(["sim", "sim:demo-small@2.5", "vllm=http://127.0.0.1:8106", "http://h:1/", "openai=https://api.example"])
    assert [(target.config.name, target.config.kind, target.profile, target.speed) for target in targets] == [
        ("sim-1", "sim", "demo-small", 1.0),
        ("sim-2", "sim", "demo-small", 2.5),
        ("vllm-1", "vllm", "", 1.0),
        ("engine-1", "auto", "", 1.0),
        ("openai-1", "openai", "", 1.0),
    ]
    assert targets[0].config.url != targets[1].config.url
    assert targets[3].config.url == "http://h:1"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "is no engine; allowed: sim"),
        ("vllm", "is no engine"),
        ("tgi=http://h:1", "is no engine"),
        ("ftp://h:1", "is no engine"),
        ("http://", "is no engine"),
        ("http://h:port", "is no engine"),
        ("http://h:1/v1", "without a path"),
        ("sim:demo-small@0", "speed 0; allowed"),
        ("sim:demo-small@fast", "is no engine"),
    ],
)
def test_what_is_no_engine(text, word):
    with pytest.raises(click.UsageError, match=word):
        parse_targets([text])


def test_one_address_twice():
    with pytest.raises(click.UsageError, match="given twice"):
        parse_targets(["http://h:1", "vllm=http://h:1"])


def test_a_faster_engine_keeps_its_sizes():
    profile = load_profile("demo-small")
    quick = faster(profile, 4.0)
    work = {"prefill_tokens": 512, "prefill_pairs": 131_328, "decode_seqs": 8, "decode_kv_tokens": 8000}
    assert quick.step_duration_s(**work) == pytest.approx(profile.step_duration_s(**work) / 4)
    assert quick.kv_capacity_tokens == profile.kv_capacity_tokens
    assert "4 times faster" in quick.source
    assert faster(profile, 1.0) is profile


@pytest.mark.parametrize(("broken", "code", "said"), [([], 0, ""), (["a", "b"], 1, "hmas: broken: a\nhmas: broken: b\n")])
def test_what_broke_is_said_and_ends_the_command(broken, code, said):
    @click.command()
    @click.pass_context
    def command(ctx):
        exit_where_broken(ctx, broken)

    found = CliRunner().invoke(command)
    assert (found.exit_code, found.output) == (code, said)
