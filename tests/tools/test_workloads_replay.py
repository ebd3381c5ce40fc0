import gzip
import json
import os

import numpy as np
import pytest
from typing_kit import known

from hmas.controller.core.errors import TraceError
from hmas.workloads import build
from hmas.workloads.table import COLUMNS

DATA = os.environ.get("HMAS_DATA_DIR", "")
needs_data = pytest.mark.skipif(not DATA, reason="HMAS_DATA_DIR names no folder of public data")
ARRIVALS = f"{DATA}/arrivals"

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02d}.5000000,{100 + second},{50 + second}\n" for second in range(10)
)


def put(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def mooncake(tmp_path, ticks=30, per_tick=20):
    rows = [
        {"timestamp": 3000 * tick, "input_length": 1500, "output_length": 100, "hash_ids": [0, 1, 2 + tick * per_tick + n]}
        for tick in range(ticks)
        for n in range(per_tick)
    ]
    return put(tmp_path, "trace.jsonl", "".join(json.dumps(row) + "\n" for row in rows)), rows


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_azure_keeps_times_and_lengths(tmp_path, name):
    workload = build(f"azure:{put(tmp_path, name, AZURE)}")
    assert workload.at_s == pytest.approx(np.arange(10.0))
    assert workload.prompt_tokens.tolist() == list(range(100, 110))
    assert workload.output_tokens.tolist() == list(range(50, 60))
    assert workload.duration_s == pytest.approx(10.0)
    assert workload.block_hashes is None


def test_times_are_scaled_by_rate_or_by_speed_and_cut_after(tmp_path):
    path = put(tmp_path, "a.csv", AZURE)
    assert build(f"azure:{path}?rate=4").at_s == pytest.approx(np.arange(10) / 4)
    assert build(f"azure:{path}?speed=2").at_s == pytest.approx(np.arange(10) / 2)
    part = build(f"azure:{path}?rate=2,start=1,duration=2")
    assert part.at_s == pytest.approx([0.0, 0.5, 1.0, 1.5])
    assert part.prompt_tokens.tolist() == [102, 103, 104, 105]
    assert part.duration_s == 2.0
    with pytest.raises(TraceError, match=r"rate is 2 and speed is 2; allowed: one of them"):
        build(f"azure:{path}?rate=2,speed=2")
    with pytest.raises(TraceError, match=r"lasts 5 s at 2 requests/s; allowed: a part of that, a lower rate, or more laps"):
        build(f"azure:{path}?rate=2,duration=6")
    assert len(build(f"azure:{path}?limit=4")) == 4


def test_laps_repeat_the_times_with_one_gap_between(tmp_path):
    path = put(tmp_path, "a.csv", AZURE)
    workload = build(f"azure:{path}?laps=3")
    assert workload.at_s == pytest.approx(np.arange(30.0))
    assert workload.rate_rps == pytest.approx(1.0)
    assert build(f"azure:{path}?laps=2,rate=2,duration=8").at_s == pytest.approx(np.arange(16) / 2)


def test_a_change_of_speed_changes_nothing_but_the_times(tmp_path):
    path = put(tmp_path, "a.csv", AZURE)
    slow, fast = build(f"azure:{path}"), build(f"azure:{path}?speed=10")
    for field in COLUMNS:
        if field != "at_s":
            assert (getattr(slow, field) == getattr(fast, field)).all()


def test_caps_double_until_the_output_fits_and_kinds_follow_the_outputs(tmp_path):
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = "".join(f"{n},100,{output}\n" for n, output in enumerate([50, 60, 70, 1024, 1025, 5000]))
    workload = build(f"azure:{put(tmp_path, 'a.csv', head + rows)}")
    assert workload.max_tokens.tolist() == [1024, 1024, 1024, 1024, 2048, 8192]
    assert set(workload.tenants) == {"aurora", "birch", "cobalt"}
    code = build(f"azure:{put(tmp_path, 'b.csv', head + ''.join(f'{n},100,10' + chr(10) for n in range(6)))}")
    assert set(code.tenants) == {"delta-ide", "ember-ci"}
    assert build(f"azure:{tmp_path / 'a.csv'}?kind=code").max_tokens.tolist()[0] == 2048
    with pytest.raises(TraceError, match="kind is 'x'; allowed: conv, code"):
        build(f"azure:{tmp_path / 'a.csv'}?kind=x")


def test_mooncake_spreads_its_ticks_and_keeps_order_and_blocks(tmp_path):
    path, rows = mooncake(tmp_path)
    workload = build(f"mooncake:{path}")
    assert workload.block_hashes == tuple(tuple(row["hash_ids"]) for row in rows)
    ticks = np.repeat(np.arange(30), 20)
    assert (workload.at_s // 3.0).astype(int).tolist() == ticks.tolist()
    inside = workload.at_s - 3.0 * ticks
    # Uniform over the tick: mean 1.5 with a standard error of 0.035, all ten parts hit.
    assert inside.mean() == pytest.approx(1.5, abs=0.15)
    assert np.histogram(inside, bins=10, range=(0, 3))[0].min() > 30
    assert (build(f"mooncake:{path}?seed=2").at_s != workload.at_s).any()
    assert (build(f"mooncake:{path}?seed=2").prompt_tokens == workload.prompt_tokens).all()


def test_a_later_lap_shares_nothing_with_the_one_before(tmp_path):
    path, rows = mooncake(tmp_path, ticks=3)
    blocks = known(build(f"mooncake:{path}?laps=2").block_hashes)
    first, second = ({i for ids in part for i in ids} for part in (blocks[: len(rows)], blocks[len(rows) :]))
    assert first & second == set()
    assert len(first) == len(second)


def test_a_cut_prompt_keeps_the_blocks_that_it_has(tmp_path):
    path, _ = mooncake(tmp_path)
    workload = build(f"mooncake:{path}?context=1024")
    assert set(workload.prompt_tokens.tolist()) == {int(1024 * 0.95) - 256}
    assert {len(ids) for ids in known(workload.block_hashes)} == {2}
    assert {len(ids) for ids in known(build(f"mooncake:{path}").block_hashes)} == {3}


def test_fine_times_are_left_alone(tmp_path):
    rows = [{"timestamp": 137 * n, "input_length": 10, "output_length": 5, "hash_ids": []} for n in range(40)]
    workload = build(f"mooncake:{put(tmp_path, 't.jsonl', ''.join(json.dumps(r) + chr(10) for r in rows))}")
    assert workload.at_s == pytest.approx(np.arange(40) * 0.137)
    assert workload.block_hashes is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "azure",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n1,100,5\n2,-100,5\n",
            r"row 3: ContextTokens is '-100'; allowed: whole numbers from 1",
        ),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,100,5\n2,100,\n", r"row 3: the output's length is missing"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,100,nan\n", r"row 2: GeneratedTokens is 'nan'"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nnan,100,5\n", r"row 2: TIMESTAMP is 'nan'"),
        (
            "azure",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n5,100,5\n4,100,5\n",
            r"row 3: the time is 4.0 s; allowed: no earlier than the row before",
        ),
        (
            "azure",
            "num_prefill_tokens,num_decode_tokens\n5,100\n",
            r"rows without a time; allowed: a time for each, or another workload with lengths=",
        ),
        ("azure", "", r"holds no rows"),
    ],
)
def test_bad_traces_name_row_and_field(tmp_path, name, text, message):
    with pytest.raises(TraceError, match=message):
        build(f"{name}:{put(tmp_path, 'bad.csv', text)}")


def test_missing_files(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        build(f"azure:{tmp_path / 'none.csv'}")
    with pytest.raises(TraceError, match=r"azure names no file or folder; allowed: as in azure:"):
        build("azure:rate=4")


def counts(workload, bin_s):
    return np.histogram(workload.at_s, np.arange(0.0, workload.duration_s, bin_s))[0]


@needs_data
@pytest.mark.parametrize(
    ("name", "count", "rps", "cv", "dispersion", "prompts", "outputs"),
    [
        ("azure_llm_2023_code.csv.gz", 6963, 3.14, 12.79, 13.1, (3, 1463, 7154, 7437), (6, 13, 87, 1899)),
        ("azure_llm_2023_conv.csv.gz", 13517, 5.94, 1.08, 1.3, (2, 1015, 4086, 14050), (7, 114, 447, 1000)),
    ],
)
def test_azure_has_its_published_statistics(name, count, rps, cv, dispersion, prompts, outputs):
    workload = build(f"azure:{ARRIVALS}/{name}")
    gaps, per_second = np.diff(workload.at_s), counts(workload, 1.0)
    assert len(workload) == count
    assert workload.rate_rps == pytest.approx(rps, abs=0.005)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.01)
    assert per_second.var() / per_second.mean() == pytest.approx(dispersion, abs=0.06)
    assert np.percentile(workload.prompt_tokens, [0, 50, 95, 100]) == pytest.approx(prompts, abs=1)
    assert np.percentile(workload.output_tokens, [0, 50, 95, 100]) == pytest.approx(outputs, abs=1)


@needs_data
def test_mooncake_is_nearly_poisson_once_spread():
    workload = build(f"mooncake:{ARRIVALS}/mooncake_conversation.jsonl.gz")
    assert len(workload) == 7490
    per_tick = counts(workload, 3.0)
    assert (per_tick.mean(), per_tick.max()) == (pytest.approx(9.8, abs=0.05), 23)
    assert per_tick.var() / per_tick.mean() == pytest.approx(1.13, abs=0.01)
    # The recorded ticks have a CV of 2.96 and a dispersion of 7.6 in one second; both are artefacts.
    gaps, per_second = np.diff(workload.at_s), counts(workload, 1.0)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.1)
    assert per_second.var() / per_second.mean() == pytest.approx(1.0, abs=0.15)
    seen: set[int] = set()
    hits = total = 0
    for ids in known(workload.block_hashes):
        total += len(ids)
        for place in ids:
            if place not in seen:
                break
            hits += 1
        seen.update(ids)
    assert hits / total == pytest.approx(0.35, abs=0.01), "with an unlimited cache 35 % of the blocks are prefix hits"


@needs_data
def test_ten_minutes_of_azure_at_forty_a_second():
    workload = build(f"azure:{ARRIVALS}/azure_llm_2023_conv.csv.gz?rate=40,duration=600,laps=2")
    assert workload.duration_s == 600.0
    assert len(workload) == pytest.approx(24_000, rel=0.05)
