import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.core.errors import TraceError
from hmas.workloads import build
from hmas.workloads.catalogue import SESSIONS, WORKLOADS, Entry
from hmas.workloads.options import parse, read_options

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "workloads.md").read_text()


def _more(name):
    """A name with options that are half right."""
    option = st.tuples(
        st.sampled_from(["rate", "count", "seed", "cv", "lengths", "x", "duration"]), st.sampled_from(["3", "-1", "nan", "", "a", "1e3"])
    )
    pairs = st.lists(option.map("=".join), max_size=3).map(",".join)
    return st.tuples(st.sampled_from([f"{name}:", f"{name}?", f"{name}:no/such/file?"]), pairs).map("".join)


DIGEST = """
import hashlib, sys
from hmas.workloads import build
from hmas.workloads.table import COLUMNS
for spec in sys.argv[1:]:
    workload = build(spec)
    digest = hashlib.sha256(repr((workload.duration_s, workload.tenants)).encode())
    for field in COLUMNS:
        digest.update(getattr(workload, field).tobytes())
    print(digest.hexdigest())
"""


@pytest.mark.parametrize(
    ("text", "name", "path", "options"),
    [
        ("poisson", "poisson", None, {}),
        ("poisson:rate=40,seed=1", "poisson", None, {"rate": "40", "seed": "1"}),
        ("poisson?rate=40&seed=1", "poisson", None, {"rate": "40", "seed": "1"}),
        ("azure:a/b=c.csv", "azure", "a/b=c.csv", {}),
        ("azure:trace.csv.gz?rate=4,duration=60", "azure", "trace.csv.gz", {"rate": "4", "duration": "60"}),
        ("poisson:rate=1,lengths=a/b.csv", "poisson", None, {"rate": "1", "lengths": "a/b.csv"}),
    ],
)
def test_specifications(text, name, path, options):
    spec = parse(text)
    assert (spec.name, spec.path, spec.options) == (name, Path(path) if path else None, options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense:rate=4", r"workload is 'nonsense'; allowed: one of poisson, gamma"),
        ("poisson:rat=4", r"poisson: 'rat' is no option of it; allowed: context, count"),
        ("poisson:rate=-4", r"poisson: rate is '-4'; allowed: float > 0"),
        ("poisson:rate=abc", r"poisson: rate is 'abc'; allowed: float"),
        ("poisson:rate=nan", r"poisson: rate is .*nan.*; allowed"),
        ("poisson:rate=inf", r"poisson: rate is .*inf.*; allowed"),
        ("poisson:seed=-1", r"poisson: seed is '-1'; allowed: int >= 0"),
        ("poisson:seed=1.5", r"poisson: seed is '1.5'; allowed: int"),
        ("poisson:rate=1,rate=2", r"rate is given twice"),
        ("poisson:rate=1,,seed", r"'seed' is no option; allowed: option=value"),
        ("poisson:rate=1e9,duration=1e6", r"rate and duration make 1e\+15 requests; allowed: up to 20,000,000"),
        ("poisson:kind=video", r"kind is 'video'; allowed: conv, code"),
        ("poisson:file.csv", r"poisson reads no file, but 'file.csv' is given; allowed: as in poisson:rate=40"),
        ("gamma:cv=1000", r"cv is 1000.0; allowed: 0.05 to 100"),
        ("poisson?rate=1:2", r"allowed: NAME:option=value"),
    ],
)
def test_a_bad_specification_says_what_is_allowed(text, message):
    with pytest.raises(TraceError, match=message):
        build(text)


@settings(max_examples=100)
@given(st.one_of(st.text(max_size=60), st.sampled_from([*WORKLOADS, *SESSIONS]).flatmap(_more)))
def test_no_text_does_anything_but_build_or_explain(text):
    with contextlib.suppress(TraceError):
        assert len(build(text)) <= 1_000_000


@pytest.mark.parametrize("name", [*WORKLOADS, *SESSIONS])
def test_examples_are_read_and_every_option_is_in_the_docs(name):
    entries: dict[str, Entry[Any]] = {**WORKLOADS, **SESSIONS}
    entry = entries[name]
    spec = parse(entry.example)
    assert spec.name == name
    assert isinstance(read_options(spec, entry.options), entry.options)
    assert f"| `{name}` |" in DOCS
    assert f"`{entry.example}`" in DOCS
    assert [option for option in entry.options.__struct_fields__ if f"`{option}`" not in DOCS] == []


@pytest.mark.parametrize("name", [name for name, entry in WORKLOADS.items() if entry.path != "must"])
def test_every_workload_that_needs_no_file_builds_with_its_defaults(name):
    workload = build(name)
    assert workload.name == name
    assert len(workload) > 1000


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_whatever_the_hash_seed():
    specs = [f"{name}?seed=7,rate=5" for name, entry in WORKLOADS.items() if entry.path != "must"]
    found = [
        subprocess.run(
            [sys.executable, "-c", DIGEST, *specs],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "999")
    ]
    assert found[0] == found[1]
    assert len(set(found[0].split())) == len(specs)
