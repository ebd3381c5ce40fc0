"""Outside load tools: how they are called, where their figures stand, what becomes of one that fails."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hmas_lab.outside.page import body
from hmas_lab.outside.session import ARMS, Cell, Site, compare, run_tool
from hmas_lab.outside.tools import AIPERF, GUIDELLM, VLLM, Ask, Figures, Tool, figures

from hmas.planning import StudyError

ASK = Ask(url="http://127.0.0.1:1", model="tiny", tokenizer=Path("/models/tiny"), rps=6.0, requests=60, ttft_ms=100, tpot_ms=15)
SAID: dict[str, tuple[Tool, str, dict[str, Any]]] = {
    "vllm": (
        VLLM,
        "result.json",
        {"request_goodput": 5.5, "p95_ttft_ms": 80.0, "p95_tpot_ms": 12.0, "completed": 60, "failed": 0, "request_throughput": 6.0},
    ),
    "guidellm": (
        GUIDELLM,
        "result.json",
        {
            "benchmarks": [
                {
                    "duration": 10.0,
                    "metrics": {
                        "request_totals": {"successful": 60, "errored": 0, "incomplete": 0},
                        "slo_attainment": 55 / 60,
                        "slo_determined_requests": 60,
                        "time_to_first_token_ms": {"successful": {"percentiles": {"p95": 80.0}}},
                        "inter_token_latency_ms": {"successful": {"percentiles": {"p95": 12.0}}},
                    },
                }
            ]
        },
    ),
    "aiperf": (
        AIPERF,
        "profile_export_aiperf.json",
        {
            "goodput": {"avg": 5.5},
            "time_to_first_token": {"p95": 80.0},
            "inter_token_latency": {"p95": 12.0},
            "request_count": {"avg": 60.0},
            "request_throughput": {"avg": 6.0},
        },
    ),
}
FIGURES = Figures(goodput_rps=5.5, ttft_p95_ms=80.0, tpot_p95_ms=12.0, completed=60, failed=0, throughput_rps=6.0)


@pytest.mark.parametrize("name", SAID)
def test_each_tools_figures_are_read_where_its_version_writes_them(tmp_path: Path, name: str):
    tool, file, document = SAID[name]
    (tmp_path / file).write_text(json.dumps(document))
    found = figures(tool, tmp_path)
    assert found.goodput_rps == pytest.approx(FIGURES.goodput_rps)
    assert (found.ttft_p95_ms, found.tpot_p95_ms, found.completed, found.failed) == (80.0, 12.0, 60, 0)
    assert found.throughput_rps == pytest.approx(6.0)
    assert found.good == 55


@pytest.mark.parametrize("name", SAID)
def test_a_result_of_another_form_is_an_error_that_names_the_tool(tmp_path: Path, name: str):
    tool, file, _ = SAID[name]
    with pytest.raises(StudyError, match="wrote no result"):
        figures(tool, tmp_path)
    (tmp_path / file).write_text("{}")
    with pytest.raises(StudyError, match=tool.name):
        figures(tool, tmp_path)


@pytest.mark.parametrize("name", SAID)
def test_every_tool_is_asked_for_the_same_load(tmp_path: Path, name: str):
    tool = SAID[name][0]
    words = " ".join(tool.command(Path("/venv/bin"), ASK, tmp_path))
    words += " ".join(path.read_text() for path in tmp_path.iterdir())
    for word in ("http://127.0.0.1:1", "/models/tiny", "6.0", "60", "128", "32", "x-slo-ttft-ms", "100", "x-slo-tpot-ms", "15"):
        assert word in words


def writes(document: object, *, status: int = 0) -> Tool:
    """A tool in this interpreter that writes vLLM's form of a result."""
    code = (
        f"import pathlib, sys; pathlib.Path(sys.argv[1]).write_text({json.dumps(document)!r}); print('its last words'); sys.exit({status})"
    )
    return Tool(
        name="made up", command=lambda _bin, _ask, folder: [sys.executable, "-c", code, str(folder / "result.json")], read=VLLM.read
    )


async def test_a_tool_that_fails_is_named_with_the_end_of_its_log(tmp_path: Path):
    with pytest.raises(StudyError, match=r"made up ended with status 3: .*its last words"):
        await run_tool(writes({}, status=3), tmp_path, ASK, tmp_path / "run")


async def test_a_cell_takes_turns_and_divides(tmp_path: Path):
    standing: list[str] = []

    @asynccontextmanager
    async def stand(arm: str) -> AsyncIterator[str]:
        standing.append(arm)
        yield "http://a"

    site = Site(stand=stand, model="tiny", tokenizer=tmp_path, folder=tmp_path, seconds=1.0)
    cell = Cell(tool=writes(SAID["vllm"][2]), place=tmp_path, load="half", rps=6.0, ttft_ms=100, tpot_ms=15, goal=0.98)
    said: list[str] = []
    row = await compare(site, cell, 2, said.append)
    assert (row["ratio"], row["ratios"], row["goodput_rps"]) == (1.0, [1.0, 1.0], dict.fromkeys(ARMS, 5.5))
    assert [line.split()[3] for line in said] == standing
    assert sorted(standing[:3]) == sorted(standing[3:]) == sorted(ARMS)
    assert standing[:3] != standing[3:], "no arm is always the first"
    broken = await compare(site, Cell(tool=writes({}), place=tmp_path, load="broken", rps=6.0, ttft_ms=100, tpot_ms=15), 1, said.append)
    summary = {"rows": [row, broken], "missing": {"other": "no such package"}, "capacity_rps": {"tiny": 12.0}, "rounds": 2, "seconds": 1.0}
    page = body({"summary": summary})
    assert "| 5.50 | 5.50 | 5.50 | 1.00 (1.00, 1.00) | 0.98 | 80 ms | 80 ms | 80 ms |" in page
    assert "failed: made up" in page
    assert "other was not measured: no such package" in page
