import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_kit import known

from hmas.controller.core.errors import TraceError
from hmas.controller.core.types import TaskType
from hmas.engines.tokens import estimate_tokens
from hmas.loadgen.dataset import load_mixture
from hmas.loadgen.replaying import ReplaySpec, arrivals_from_trace
from hmas.loadgen.trace_prompts import read_prompt_row
from hmas.loadgen.traces import Trace, TraceRow, read_trace

MIXTURE, PROMPTS = load_mixture()
DATA = os.environ.get("HMAS_DATA_DIR", "")
needs_data = pytest.mark.skipif(not DATA, reason="HMAS_DATA_DIR names no folder of public data")

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2228670,879,55
"""


def write(tmp_path, name, text):
    path = tmp_path / name
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def jsonl(*rows):
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"


@pytest.mark.parametrize("name", ["azure.csv", "azure.csv.gz"])
def test_azure_original_columns(tmp_path, name):
    trace = read_trace(write(tmp_path, name, AZURE))
    assert trace.format == "azure"
    assert [(row.prompt_tokens, row.output_tokens) for row in trace.rows] == [(374, 44), (396, 109), (879, 55)]
    assert [row.at_s for row in trace.rows] == pytest.approx([0.0, 4.314579, 4.542277], abs=1e-4)


def test_azure_with_zones_and_with_plain_seconds(tmp_path):
    zoned = AZURE.replace("Tokens\n", "Tokens\n").replace("46.6805900", "46.680590+00:00")
    zoned = zoned.replace("50.9951690", "50.995169+00:00").replace("51.2228670", "51.222867+00:00")
    assert read_trace(write(tmp_path, "a.csv", zoned)).rows[1].at_s == pytest.approx(4.314579, abs=1e-4)
    plain = "arrival_s,timestamp_utc,context_tokens,generated_tokens\n5.0,x,10,2\n7.5,y,20,3\n"
    assert [r.at_s for r in read_trace(write(tmp_path, "b.csv", plain)).rows] == [0.0, 2.5]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16 18:15:52,abc,5", r"row 5: ContextTokens is 'abc'; wanted a whole number"),
        ("2023-11-16 18:15:52,-4,5", "ContextTokens is '-4'; allowed: whole numbers from 1"),
        ("2023-11-16 18:15:52,0,5", "ContextTokens is '0'"),
        ("2023-11-16 18:15:52,4.5,5", "ContextTokens is '4.5'"),
        ("2023-11-16 18:15:52,nan,5", "ContextTokens is 'nan'"),
        ("2023-11-16 18:15:52,7", "output's length is missing"),
        ("2023-11-16 18:15:52,,5", "prompt's length is missing"),
        ("yesterday,7,5", "TIMESTAMP is 'yesterday'; wanted seconds or an ISO date"),
        ("inf,7,5", "TIMESTAMP is 'inf'"),
    ],
)
def test_bad_azure_rows_are_named_and_can_be_skipped(tmp_path, row, message):
    path = write(tmp_path, "azure.csv", AZURE + row + "\n")
    with pytest.raises(TraceError, match=message):
        read_trace(path)
    trace = read_trace(path, skip_bad=True)
    assert (len(trace.rows), trace.skipped) == (3, 1)
    assert "row 5" in trace.complaints[0]


def test_times_out_of_order_are_sorted_and_counted(tmp_path):
    lines = AZURE.splitlines()
    path = write(tmp_path, "azure.csv", "\n".join([lines[0], lines[3], lines[1], lines[2]]) + "\n")
    trace = read_trace(path)
    assert trace.reordered == 1
    assert [row.prompt_tokens for row in trace.rows] == [374, 396, 879]
    assert trace.rows[0].at_s == 0.0


def test_mooncake_ticks_are_spread(tmp_path):
    rows = [{"timestamp": 3000 * (i // 10), "input_length": 600, "output_length": 9, "hash_ids": [i, i + 1]} for i in range(40)]
    trace = read_trace(write(tmp_path, "m.jsonl.gz", jsonl(*rows)))
    assert trace.format == "mooncake"
    gaps = np.diff([row.at_s for row in trace.rows])
    assert gaps == pytest.approx(np.full(39, 0.3), abs=1e-6)
    assert trace.rows[0].blocks == (0, 1)


def test_mooncake_with_fine_times_is_left_alone(tmp_path):
    rows = [{"timestamp": 40 * i, "input_length": 6, "output_length": 9} for i in range(30)]
    trace = read_trace(write(tmp_path, "m.jsonl", jsonl(*rows)))
    assert [row.at_s for row in trace.rows[:3]] == pytest.approx([0.0, 0.04, 0.08])


def test_a_list_in_place_of_a_length_is_named(tmp_path):
    path = write(tmp_path, "a.jsonl", jsonl({"arrival_s": 0, "input_tokens": [5], "output_tokens": 5}))
    with pytest.raises(TraceError, match=r"row 1: input_tokens is \[5\]; wanted a whole number of tokens"):
        read_trace(path, format_name="azure")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{half a row", "wanted a JSON object"),
        ([1, 2], "wanted a JSON object"),
        ({"timestamp": 1, "input_length": 5}, "output_length is missing"),
        ({"timestamp": "soon", "input_length": 5, "output_length": 5}, "timestamp is 'soon'"),
        ({"timestamp": 1, "input_length": 5, "output_length": None}, "output_length is None"),
        ({"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": [-1]}, "hash_ids must be"),
        ({"timestamp": 1, "input_length": 10**12, "output_length": 5}, "input_length is"),
    ],
)
def test_bad_mooncake_rows(tmp_path, row, message):
    good = {"timestamp": 0, "input_length": 5, "output_length": 5}
    path = write(tmp_path, "m.jsonl", jsonl(row, good))
    with pytest.raises(TraceError, match=f"row 1: .*{message}"):
        read_trace(path, format_name="mooncake")
    trace = read_trace(path, format_name="mooncake", skip_bad=True)
    assert (len(trace.rows), trace.skipped) == (1, 1)


def test_detection_looks_past_bad_rows(tmp_path):
    path = write(tmp_path, "m.jsonl", jsonl("nonsense", {"timestamp": 0, "input_length": 5, "output_length": 5}))
    assert read_trace(path, skip_bad=True).format == "mooncake"


@pytest.mark.parametrize(
    ("row", "messages", "output"),
    [
        ({"prompt": "Why?"}, (("user", "Why?"),), None),
        ({"text": "Hello there"}, (("user", "Hello there"),), None),
        ({"question": "Who?", "answer": "Nobody at all."}, (("user", "Who?"),), estimate_tokens("Nobody at all.")),
        ({"instruction": "Sum up.", "input": "A b c.", "output": "Abc."}, (("user", "Sum up.\n\nA b c."),), estimate_tokens("Abc.")),
        ({"prompt": "Why?", "output_tokens": 77, "response": "x"}, (("user", "Why?"),), 77),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello you."}]},
            (("user", "Hi"),),
            estimate_tokens("Hello you."),
        ),
        (
            {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
            (("system", "Be brief."), ("user", "Hi")),
            None,
        ),
        ({"prompt": [{"role": "user", "content": "Hi"}]}, (("user", "Hi"),), None),
    ],
)
def test_prompt_rows(row, messages, output):
    found = read_prompt_row(row)
    assert found.messages == messages
    assert found.output_tokens == output


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"title": "x"}, "no prompt; wanted one of"),
        ({"prompt": ""}, "prompt is ''; wanted text"),
        ({"prompt": 5}, "prompt is '5'; wanted text"),
        (7, "wanted a JSON object or a string"),
        ({"messages": []}, "messages is '\\[\\]'; wanted a list of turns"),
        ({"messages": ["hi"]}, r"messages\[0\] is 'hi'; wanted an object"),
        ({"messages": [{"role": "pirate", "content": "Arr"}]}, r"messages\[0\].role is 'pirate'; allowed"),
        ({"messages": [{"role": ["user"], "content": "Arr"}]}, r"messages\[0\].role"),
        ({"messages": [{"role": "user", "content": None}]}, r"messages\[0\].content"),
        ({"conversations": [{"from": "gpt", "value": "I begin"}]}, "no user turn"),
        ({"prompt": "x", "output_tokens": "many"}, "output_tokens is 'many'"),
    ],
)
def test_bad_prompt_rows(row, message):
    with pytest.raises(TraceError, match=message):
        read_prompt_row(row)


@pytest.mark.parametrize("name", ["p.json", "p.jsonl"])
def test_prompt_files_without_times_need_a_rate(tmp_path, name):
    rows = [{"prompt": f"Translate the word number {i}", "task_type": "Translation"} for i in range(30)]
    path = write(tmp_path, name, json.dumps({"data": rows}) if name == "p.json" else jsonl(*rows))
    trace = read_trace(path)
    with pytest.raises(TraceError, match="no arrival times; give a rate"):
        arrivals_from_trace(trace, ReplaySpec(), MIXTURE, PROMPTS)
    arrivals, _ = arrivals_from_trace(trace, ReplaySpec(rate_rps=5.0), MIXTURE, PROMPTS)
    assert len(arrivals) == 30
    assert arrivals[-1].at_s == pytest.approx(6.0, rel=0.6)
    assert {a.task_type for a in arrivals} == {TaskType.TRANSLATION}
    assert arrivals[3].messages[0].content == "Translate the word number 3"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.csv", None, "no such file"),
        ("empty.csv", "", "holds no rows"),
        ("only-header.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no rows"),
        ("other.csv", "a,b\n1,2\n", r"not recognised from the fields \(a, b\)"),
        ("x.txt", "hello", "files of type .txt are not read"),
        ("x.json", "{broken", "wanted a JSON list"),
        ("x.json", '{"a": 1}', "wanted a JSON list"),
        ("x.jsonl.gz", b"", "holds no rows"),
    ],
)
def test_files_that_are_no_traces(tmp_path, name, content, message):
    path = tmp_path / name if content is None else write(tmp_path, name, content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_broken_gzip_is_named(tmp_path):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode())[:-20])
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(path)


def test_parquet_without_pyarrow_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(TraceError, match="needs pyarrow"):
        read_trace(write(tmp_path, "x.parquet", b"PAR1"))


def test_limit_counts_good_rows(tmp_path):
    path = write(tmp_path, "a.csv", AZURE)
    assert len(read_trace(path, limit=2).rows) == 2
    with pytest.raises(TraceError, match="limit is -1"):
        read_trace(path, limit=-1)


def test_rate_and_speed_scale_the_times(tmp_path):
    rows = "".join(f"{i * 2.0},100,10\n" for i in range(21))
    trace = read_trace(write(tmp_path, "a.csv", "arrival_s,context_tokens,generated_tokens\n" + rows))
    by_rate, _ = arrivals_from_trace(trace, ReplaySpec(rate_rps=4.0), MIXTURE, PROMPTS)
    assert np.diff([a.at_s for a in by_rate]) == pytest.approx(np.full(20, 0.25))
    by_speed, _ = arrivals_from_trace(trace, ReplaySpec(speed=10.0), MIXTURE, PROMPTS)
    assert np.diff([a.at_s for a in by_speed]) == pytest.approx(np.full(20, 0.2))
    short, _ = arrivals_from_trace(trace, ReplaySpec(duration_s=5.0), MIXTURE, PROMPTS)
    assert len(short) == 3
    with pytest.raises(TraceError, match="either a speed above 0 or a rate"):
        arrivals_from_trace(trace, ReplaySpec(rate_rps=4.0, speed=2.0), MIXTURE, PROMPTS)
    with pytest.raises(TraceError, match="kind is 'poems'; allowed: conv, code"):
        arrivals_from_trace(trace, ReplaySpec(kind="poems"), MIXTURE, PROMPTS)


def test_long_requests_are_cut_to_the_context_and_counted(tmp_path):
    path = write(tmp_path, "a.csv", "arrival_s,context_tokens,generated_tokens\n0,9000,10\n1,100,3000\n2,100,10\n")
    arrivals, cut = arrivals_from_trace(read_trace(path), ReplaySpec(context_tokens=4096, kind="conv"), MIXTURE, PROMPTS)
    assert cut == 2
    assert all(a.prompt_tokens + a.max_tokens <= 4096 for a in arrivals)
    whole, none = arrivals_from_trace(read_trace(path), ReplaySpec(kind="conv"), MIXTURE, PROMPTS)
    assert none == 0
    assert whole[1].output_tokens == 3000
    assert whole[1].max_tokens == 4096


def test_shared_blocks_give_shared_text():
    rows = [
        TraceRow(at_s=0.0, prompt_tokens=1100, output_tokens=5, blocks=(0, 1, 2)),
        TraceRow(at_s=1.0, prompt_tokens=1100, output_tokens=5, blocks=(0, 1, 9)),
    ]
    arrivals, _ = arrivals_from_trace(Trace(source="t", format="mooncake", rows=rows), ReplaySpec(), MIXTURE, PROMPTS)
    first, second = (a.messages[0].content for a in arrivals)
    common = first[: next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)]
    assert 900 < estimate_tokens(common) < 1080
    assert first != second


def test_long_outputs_go_to_tasks_that_write_long():
    rows = [TraceRow(at_s=float(i), prompt_tokens=200, output_tokens=10 + i) for i in range(600)]
    arrivals, _ = arrivals_from_trace(Trace(source="t", format="azure", rows=rows), ReplaySpec(kind="conv"), MIXTURE, PROMPTS)
    long_tasks = {TaskType.ESSAY_GENERATION, TaskType.LONG_FORM_GENERATION, TaskType.RESEARCH_AND_COMMUNICATION}
    assert sum(a.task_type in long_tasks for a in arrivals[-60:]) > 10 * max(1, sum(a.task_type in long_tasks for a in arrivals[:300]))


def test_chats_keep_their_turns():
    row = TraceRow(messages=(("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes?"), ("user", "Why?")), output_tokens=4)
    arrivals, _ = arrivals_from_trace(Trace(source="t", format="prompts", rows=[row]), ReplaySpec(rate_rps=1.0), MIXTURE, PROMPTS)
    assert [turn.role for turn in arrivals[0].messages] == ["system", "user", "assistant", "user"]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_noise_is_an_error_and_never_a_crash(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("noise")
    for name in ("x.csv", "x.jsonl", "x.json"):
        (folder / name).write_bytes(data)
        try:
            read_trace(folder / name, skip_bad=True)
        except TraceError:
            continue


@needs_data
@pytest.mark.parametrize(("name", "requests", "rps"), [("conv", 13517, 5.94), ("code", 6963, 3.14)])
def test_real_azure_files(name, requests, rps):
    trace = read_trace(Path(DATA) / "arrivals" / f"azure_llm_2023_{name}.csv.gz")
    assert len(trace.rows) == requests
    assert requests / trace.rows[-1].at_s == pytest.approx(rps, rel=0.01)
    arrivals, _ = arrivals_from_trace(Trace(source="t", format="azure", rows=trace.rows[:60]), ReplaySpec(rate_rps=10.0), MIXTURE, PROMPTS)
    assert {a.kind for a in arrivals} == {name}
    assert [a.output_tokens for a in arrivals] == [row.output_tokens for row in trace.rows[:60]]


@needs_data
def test_real_mooncake_files():
    trace = read_trace(Path(DATA) / "arrivals" / "mooncake_conversation.jsonl.gz")
    assert len(trace.rows) == 7490
    counts = np.bincount([int(known(row.at_s)) for row in trace.rows])
    assert counts.max() < 12, "spread inside the 3 s ticks"
    assert (read_trace(Path(DATA) / "arrivals" / "mooncake_synthetic.jsonl.gz", limit=500).rows[-1].at_s or 0.0) > 0


@needs_data
def test_real_prompt_files():
    trace = read_trace(Path(DATA) / "prompts" / "typed_prompts.jsonl.gz", limit=3000)
    assert trace.format == "prompts"
    assert len({row.task_type for row in trace.rows}) > 10
    arrivals, _ = arrivals_from_trace(
        Trace(source="t", format="prompts", rows=trace.rows[:50]), ReplaySpec(rate_rps=10.0), MIXTURE, PROMPTS
    )
    assert len(arrivals) == 50
    assert len(read_trace(Path(DATA) / "prompts" / "multi_model_prompts.jsonl.gz", limit=100).rows) == 100
