import contextlib
import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.core.errors import TraceError
from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import TaskType
from hmas.workloads import TASKS, build
from hmas.workloads.columns import COLUMNS
from hmas.workloads.files import read_workload, write_workload

CELLS = [
    b"at_s,prompt_tokens,output_tokens\n",
    b"0,1,1\n",
    b'{"at_s": 1, "prompt_tokens": 1, "output_tokens": 1}\n',
    b"# {",
    b"1e999",
    b'"',
    b"\x00",
]
HEAD = "at_s,prompt_tokens,output_tokens\n"


def put(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["w.csv", "w.csv.gz", "w.jsonl", "w.jsonl.gz"])
def test_what_is_written_is_read_back_to_the_last_bit(tmp_path, name):
    trace = put(
        tmp_path,
        "trace.jsonl",
        "".join(
            json.dumps({"timestamp": 40 * n, "input_length": 600 + n, "output_length": 5 + n, "hash_ids": [0, n] if n % 3 else []}) + "\n"
            for n in range(50)
        ),
    )
    for workload in (build("poisson:rate=10,duration=30"), build(f"mooncake:{trace}?rate=3")):
        write_workload(workload, tmp_path / name)
        again = read_workload(tmp_path / name)
        for field in COLUMNS:
            if field != "tenant":
                assert (getattr(workload, field) == getattr(again, field)).all(), field
        named = [[w.tenants[t] for t in w.tenant] for w in (workload, again)]
        assert named[0] == named[1]
        assert (again.name, again.duration_s, again.block_hashes, again.hash_tokens) == (
            workload.name,
            workload.duration_s,
            workload.block_hashes,
            workload.hash_tokens,
        )
        first = (tmp_path / name).read_bytes()
        write_workload(again, tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
        assert len(build(f"file:{tmp_path / name}?rate=7")) == len(workload)


def test_three_columns_are_enough(tmp_path):
    workload = read_workload(put(tmp_path, "mine.csv", HEAD + "0,10,5\n2.5,20,6\n"))
    assert workload.name == "mine"
    assert workload.max_tokens.tolist() == [5, 6]
    assert {TASKS[t] for t in workload.task} == {TaskType.UNKNOWN}
    slo = slo_for(TaskType.UNKNOWN, 0.75)
    assert (set(workload.slo_ttft_ms.tolist()), set(workload.slo_tpot_ms.tolist())) == ({slo.ttft_ms}, {slo.tpot_ms})
    assert workload.tenants == ("default",)
    assert workload.session.tolist() == [-1, -1]
    assert workload.block_hashes is None
    assert workload.duration_s == 5.0


def test_columns_in_any_order_and_with_gaps(tmp_path):
    text = "tenant,output_tokens,at_s,prompt_tokens,task,slo_ttft_ms\nx,5,0,10,QA,\n,6,1,20,,900\n"
    workload = read_workload(put(tmp_path, "mine.csv.gz", text))
    assert [workload.tenants[t] for t in workload.tenant] == ["x", "default"]
    assert [TASKS[t] for t in workload.task] == [TaskType.QA, TaskType.UNKNOWN]
    assert workload.slo_ttft_ms.tolist() == [slo_for(TaskType.QA, 0.75).ttft_ms, 900.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "0,10,5\n1,-3,5\n", r"line 3: prompt_tokens is -3.0; allowed: 1 to 10000000"),
        (HEAD + "0,10,5\n1,,5\n", r"line 3: prompt_tokens is missing; allowed: a number"),
        (HEAD + "0,10,5\n1,3\n", r"line 3: output_tokens is missing"),
        (HEAD + "0,10,5\n1,3,4,9\n", r"line 3: \(beyond the last column\) is \['9'\]; allowed: no such field"),
        (HEAD + "0,10,nan\n", r"line 2: output_tokens is 'nan'; allowed: a finite number"),
        (HEAD + "0,10,abc\n", r"line 2: output_tokens is 'abc'; allowed"),
        (HEAD + "5,10,5\n\n4,10,5\n", r"line 4: at_s is 4.0; allowed: no earlier than the row before"),
        (HEAD + "inf,10,5\n", r"line 2: at_s is 'inf'"),
        (HEAD + "0,1.5,5\n", r"line 2: prompt_tokens is 1.5; allowed: whole numbers"),
        (HEAD, r"holds no rows"),
        ("", r"holds no rows"),
        ("at_s,prompt_tokens,output_tokens,colour\n0,1,1,red\n", r"line 2: colour is red; allowed: no such field, only at_s"),
        ("at_s,prompt_tokens,output_tokens,task\n0,1,1,Cooking\n", r"line 2: task is Cooking; allowed: QA, Dialogue"),
        ("at_s,prompt_tokens,output_tokens,block_hashes\n0,1,1,1 x\n", r"line 2: block_hashes is '1 x'; allowed: whole numbers"),
        (
            "at_s,prompt_tokens,output_tokens,max_tokens\n0,1,9,8\n",
            r"line 2: output_tokens is 9.0; allowed: no more than the row's max_tokens",
        ),
        ("# {}\n" + HEAD + "0,1,1\n", r"line 1: .* does not tell a workload's name"),
        ('# {"workload": "x", "duration_s": 1}\n' + HEAD + "0,1,1\n4,1,-1\n", r"line 4: output_tokens is -1.0"),
        ('# {"workload": "x", "duration_s": 1}\n' + HEAD + "0,1,1\n4,1,1\n", r"duration_s is 1.0; allowed: no less than the last"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_half_read(tmp_path, text, message):
    path = put(tmp_path, "bad.csv", text)
    with pytest.raises(TraceError, match=message) as error:
        build(f"file:{path}")
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": 1}\nnonsense\n', r"line 2: no JSON"),
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": 1}\n\n[1]\n', r"line 3: wanted an object"),
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": null}\n', r"line 1: output_tokens is missing"),
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": [1]}\n', r"line 1: output_tokens is \[1\]"),
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": 1, "block_hashes": [1, -2]}\n', r"line 1: block_hashes is \[1, -2\]"),
        ('{"workload": "x", "speed": 1}\n', r"line 1: .*unknown field"),
    ],
)
def test_bad_json_lines(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        read_workload(put(tmp_path, "bad.jsonl", text))


@settings(max_examples=100)
@given(st.sampled_from([".csv", ".jsonl"]), st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(CELLS)), max_size=12))
def test_no_bytes_do_anything_but_load_or_explain(tmp_path_factory, suffix, parts):
    path = tmp_path_factory.getbasetemp() / f"noise{suffix}"
    path.write_bytes(b"".join(parts))
    with contextlib.suppress(TraceError):
        assert len(read_workload(path)) > 0


def test_files_that_are_no_workloads(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        read_workload(tmp_path / "none.csv")
    with pytest.raises(TraceError, match=r"files of type .txt; allowed: .csv, .jsonl"):
        read_workload(put(tmp_path, "w.txt", HEAD))
    with pytest.raises(TraceError, match=r"files of type .txt; allowed"):
        write_workload(build("poisson:rate=10,duration=1"), tmp_path / "w.txt")
    with pytest.raises(TraceError, match="cannot be written"):
        write_workload(build("poisson:rate=10,duration=1"), tmp_path / "no" / "w.csv")
    broken = tmp_path / "w.csv.gz"
    broken.write_bytes(gzip.compress(HEAD.encode() * 100)[:40])
    with pytest.raises(TraceError, match="cannot be read"):
        read_workload(broken)
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"at_s,prompt_tokens,output_tokens,tenant\n0,1,1,\xe9\n")
    with pytest.raises(TraceError, match="cannot be read"):
        read_workload(latin)


def test_a_file_keeps_its_own_targets(tmp_path):
    path = put(tmp_path, "w.csv", HEAD + "0,10,5\n1,10,5\n2,10,5\n3,10,5\n")
    for option in ("slo_scale=2", "ttft_ms=5", "context=4096"):
        with pytest.raises(TraceError, match=r"a workload file has its own targets and lengths"):
            build(f"file:{path}?{option}")
    assert build(f"file:{path}?speed=2").at_s.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert build(f"file:{path}?start=1,duration=2").at_s.tolist() == [0.0, 1.0]
    assert np.isclose(build(f"file:{path}?rate=10").rate_rps, 10.0)
