"""The lines of the keys of a TOML text: those at which their statements begin."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.controller.config.document import parse_toml, toml_lines

DOCUMENT = """\
state_dir = "x" # a comment with = and [brackets]
a.b."c d" = 1
[gateway]
"port" = 1
'host' = '''
[not.a.table]
key = 1
'''
note = \"\"\"quotes \\"\"\" and "" inside\"\"\"
[[engines]]
name = "a"
[[engines]]
name = "b # no comment"
sub = { x = 1, y = [ { z = 1 }, 2 ] }
[engines.more]
deep = true
[tenants]
t = { keys = [
  "one", # first
  # nothing
  "two",
], weight = 1 }
"""


def line_of(needle, nth=1):
    at = -1
    for _ in range(nth):
        at = DOCUMENT.index(needle, at + 1)
    return DOCUMENT.count("\n", 0, at) + 1


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("state_dir",), 1),
        (("a",), 2),
        (("a", "b"), 2),
        (("a", "b", "c d"), 2),
        (("gateway",), 3),
        (("gateway", "port"), 4),
        (("gateway", "host"), 5),
        (("gateway", "note"), 9),
        (("engines", 0), 10),
        (("engines", 0, "name"), 11),
        (("engines", 1), 12),
        (("engines", 1, "name"), 13),
        (("engines", 1, "sub", "x"), 14),
        (("engines", 1, "sub", "y", 0, "z"), 14),
        (("engines", 1, "sub", "y", 1), 14),
        (("engines", 1, "more"), 15),
        (("engines", 1, "more", "deep"), 16),
        (("tenants", "t", "keys", 1), line_of("t = {")),
        (("tenants", "t", "weight"), line_of("t = {")),
    ],
)
def test_lines(path, line):
    assert parse_toml(DOCUMENT, "hmas.toml").line_of(path) == line
    assert parse_toml(DOCUMENT.replace("\n", "\r\n"), "hmas.toml").line_of(path) == line


KEYS = st.text(alphabet="ab-_1", min_size=1, max_size=3)
TEXTS = st.text(alphabet="ab\"'#[]{}=\\\n ", max_size=12)


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@st.composite
def documents(draw):
    """A text with tables of strings and lists, and the line that every key must be found on."""
    lines: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    for table in draw(st.lists(KEYS, unique=True, max_size=4)):
        lines += draw(st.sampled_from([[], ["# [x]"], [""]]))
        lines.append(f"[{table}]")
        expected[(table,)] = len(lines)
        for key in draw(st.lists(KEYS, unique=True, max_size=4)):
            value = draw(TEXTS)
            form = draw(st.sampled_from(["plain", "multi", "list"]))
            expected[(table, key)] = len(lines) + 1
            if form == "plain":
                lines.append(f"{key} = {quoted(value)} # = [")
            elif form == "multi":
                lines += f'{key} = """\n{quoted(value)[1:-1]}\n[zz]"""'.split("\n")
            else:
                lines += [f"{key} = [", f"  {quoted(value)}, # ]", "]"]
    return "\n".join(lines), expected


@given(documents())
def test_every_key_is_found_on_its_line(case):
    text, expected = case
    tomllib.loads(text)
    assert toml_lines(text) == expected


@given(st.text(alphabet="ab=[]{}\"'#\n.,\\ ", max_size=60))
def test_any_text_ends_without_an_exception(text):
    assert isinstance(toml_lines(text), dict)
