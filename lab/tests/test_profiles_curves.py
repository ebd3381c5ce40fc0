"""Interpolation of measurements: exact where measured, a power law between, and honest about where it knows nothing."""

import pytest
from hmas_lab.profiles.curves import Line, Sheet, between
from hmas_lab.profiles.spikes import without_spikes
from hmas_lab.profiles.tables import Tables, data_folder, read_tables

from hmas.engines.errors import ProfileError


def test_a_line_meets_its_points_and_follows_a_power_between():
    line = Line([(100, 10.0), (1, 1.0), (10_000, 1000.0)])
    assert [line.ms(size) for size in (1, 100, 10_000)] == pytest.approx([1.0, 10.0, 1000.0])
    assert line.ms(10) == pytest.approx(10**0.5)
    assert line.ms(1000) == pytest.approx(100.0)


def test_outside_its_points_a_line_is_flat_below_and_grows_above():
    points = [(4, 2.0), (8, 3.0)]
    assert Line(points).ms(1) == pytest.approx(2.0)
    assert Line(points).ms(16) == pytest.approx(6.0)
    assert Line(points, growth=2.0).ms(16) == pytest.approx(12.0)


def test_repeated_measurements_count_as_their_mean():
    assert Line([(4, 2.0), (4, 4.0), (8, 9.0)]).ms(4) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("at", "expected"),
    [(1, [(2, 1.0)]), (2, [(2, 1.0)]), (4, [(2, 0.5), (8, 0.5)]), (8, [(8, 1.0)]), (50, [(32, 1.0)])],
)
def test_weights_between_neighbours_add_up(at, expected):
    got = between([2, 8, 32], at)
    assert [value for value, _ in got] == [value for value, _ in expected]
    assert [weight for _, weight in got] == pytest.approx([weight for _, weight in expected])


def test_a_sheet_uses_only_rows_that_reach_and_says_what_it_covers():
    sheet = Sheet({1: Line([(10, 1.0), (1000, 100.0)]), 4: Line([(10, 4.0), (100, 40.0)])})
    assert sheet.ms(2, 100) == pytest.approx(20.0)
    assert sheet.ms(4, 1000) == pytest.approx(400.0), "the row of 4 ends at 100 tokens: four times the row of 1"
    assert sheet.ms(1, 10_000) == pytest.approx(1000.0)
    assert sheet.covers(4, 100)
    assert not sheet.covers(4, 101)
    assert not sheet.covers(5, 100)
    assert not sheet.covers(1, 1001)


def attention(heads, kv_heads, ms, op="generation_attention"):
    return {
        "op_name": op,
        "batch_size": "8",
        "isl": "1",
        "step": "1023",
        "num_heads": str(heads),
        "num_key_value_heads": str(kv_heads),
        "head_dim": "128",
        "kv_cache_dtype": "bfloat16",
        "latency_ms": str(ms),
    }


def test_decoding_heads_that_were_not_measured_count_as_more_sequences():
    tables = Tables("g")
    tables.add("attention", attention(8, 8, 0.5))
    sheet = tables.decode_sheet(40, 40)
    assert sheet.fold == 5
    assert sheet.ms(8, 1024) == pytest.approx(2.5)
    with pytest.raises(ProfileError, match="g: no generation_attention near 40 query and 5 KV heads"):
        tables.decode_sheet(40, 5)


def test_heads_between_two_measured_numbers_are_interpolated():
    tables = Tables("g")
    for heads, ms in ((16, 1.0), (24, 4.0)):
        tables.add("attention", attention(heads, 4, ms))
    assert 1.0 < tables.decode_sheet(20, 4).ms(8, 1024) < 4.0


def test_a_gemm_between_measured_shapes_and_beyond_them():
    tables = Tables("g")
    for m in (1, 16):
        for n in (1024, 4096):
            row = {"gemm_dtype": "bfloat16", "m": str(m), "n": str(n), "k": "1024", "latency_ms": str(m * n / 1024)}
            tables.add("gemm", row)
    assert tables.gemm_ms("bfloat16", 4, 2048, 1024) == pytest.approx(8.0)
    assert tables.gemm_ms("bfloat16", 1, 8192, 1024) == pytest.approx(8.0), "beyond the largest n in proportion"


def test_missing_and_broken_data_say_where(tmp_path, monkeypatch):
    monkeypatch.delenv("HMAS_DATA_DIR", raising=False)
    with pytest.raises(ProfileError, match="give --data or set HMAS_DATA_DIR"):
        data_folder()
    with pytest.raises(ProfileError, match=r"aic_gemm\.csv\.gz is not there"):
        data_folder(tmp_path)
    (tmp_path / "aic_gemm.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(ProfileError, match=r"aic_gemm\.csv\.gz"):
        read_tables(tmp_path)


def grid(**changed):
    ms = {(m, n): float(m * n) for m in (1, 2, 4, 8) for n in (1, 2, 4, 8)}
    return ms | {(int(key[1]), int(key[2])): value for key, value in changed.items()}


def test_a_measurement_that_stands_out_from_its_neighbours_is_replaced():
    clean, count = without_spikes(grid(p22=9.0))
    assert count == 1
    assert clean[2, 2] == pytest.approx(4.0)
    assert {point: ms for point, ms in clean.items() if point != (2, 2)} == {point: ms for point, ms in grid().items() if point != (2, 2)}


def test_what_badly_filled_tiles_a_cache_s_end_or_an_edge_explain_stays():
    assert without_spikes(grid(p22=6.0))[1] == 0, "half as slow again"
    assert without_spikes(grid(p28=90.0))[1] == 0, "an edge has neighbours along one axis only"
    beyond_the_cache: dict[tuple[int, ...], float] = {
        (m, n): float(m * n) * (4 if m * n >= 8 else 1) for m in (1, 2, 4, 8) for n in (1, 2, 4, 8)
    }
    assert without_spikes(beyond_the_cache)[1] == 0, "everything larger is slow too"
