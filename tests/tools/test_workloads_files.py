import contextlib
import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmas.controller.core.errors import TraceError
from hmas.controller.core.slo import slo_for
from hmas.controller.core.types import TaskType
from hmas.workloads import TASKS, build
from hmas.workloads.files import read_workload

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
        (HEAD + "0,10,5\n1,-3,5\n", r"row 3: prompt_tokens is -3.0; allowed: 1 to 10000000"),
        (HEAD + "0,10,5\n1,,5\n", r"row 3: prompt_tokens is missing; allowed: a number"),
        (HEAD + "0,10,5\n1,3\n", r"row 3: output_tokens is missing"),
        (HEAD + "0,10,5\n1,3,4,9\n", r"row 3: a value beyond the last column is no field"),
        (HEAD + "0,10,nan\n", r"row 2: output_tokens is 'nan'; allowed: a finite number"),
        (HEAD + "0,10,abc\n", r"row 2: output_tokens is 'abc'; allowed"),
        (HEAD + "5,10,5\n\n4,10,5\n", r"row 3: at_s is 4.0; allowed: no earlier than the row before"),
        (HEAD + "inf,10,5\n", r"row 2: at_s is 'inf'"),
        (HEAD + "0,1.5,5\n", r"row 2: prompt_tokens is 1.5; allowed: whole numbers"),
        (HEAD, r"holds no rows"),
        ("", r"holds no rows"),
        ("at_s,prompt_tokens,output_tokens,colour\n0,1,1,red\n", r"row 2: colour is no field; allowed: at_s"),
        ("at_s,prompt_tokens,output_tokens,task\n0,1,1,Cooking\n", r"row 2: task is Cooking; allowed: QA, Dialogue"),
        ("at_s,prompt_tokens,output_tokens,block_hashes\n0,1,1,1 x\n", r"row 2: block_hashes is '1 x'; allowed: whole numbers"),
        (
            "at_s,prompt_tokens,output_tokens,max_tokens\n0,1,9,8\n",
            r"row 2: output_tokens is 9.0; allowed: no more than the row's max_tokens",
        ),
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
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": 1}\nnonsense\n', r"row 2: wanted an object"),
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": 1}\n\n[1]\n', r"row 3: wanted an object"),
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": null}\n', r"row 1: output_tokens is missing"),
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": [1]}\n', r"row 1: output_tokens is \[1\]"),
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": 1, "block_hashes": [1, -2]}\n', r"row 1: block_hashes is '\[1, -2\]'"),
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
    with pytest.raises(TraceError, match=r"files of type .txt are not read; allowed: .csv, .jsonl"):
        read_workload(put(tmp_path, "w.txt", HEAD))
    broken = tmp_path / "w.csv.gz"
    broken.write_bytes(gzip.compress(HEAD.encode() * 100)[:40])
    with pytest.raises(TraceError, match="cannot be read"):
        read_workload(broken)


def test_a_file_keeps_its_own_targets(tmp_path):
    path = put(tmp_path, "w.csv", HEAD + "0,10,5\n1,10,5\n2,10,5\n3,10,5\n")
    for option in ("slo_scale=2", "ttft_ms=5", "context=4096"):
        with pytest.raises(TraceError, match=r"a workload file has its own targets and lengths"):
            build(f"file:{path}?{option}")
    assert build(f"file:{path}?speed=2").at_s.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert build(f"file:{path}?start=1,duration=2").at_s.tolist() == [0.0, 1.0]
    assert np.isclose(build(f"file:{path}?rate=10").rate_rps, 10.0)
