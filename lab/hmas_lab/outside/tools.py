"""How each outside load tool is called for one load, and where its own figures stand in what it writes."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hmas.planning import StudyError

SEED = 20_26
VLLM_BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""What `vllm bench serve` runs; the CPU build's own command line does not find its version."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One load that a tool is asked to make: streamed chat completions of fixed sizes, as a Poisson process.

    Attributes:
        url: Base address, without /v1.
        model: The name in each request.
        tokenizer: Directory of its tokenizer.
        rps: Requests per second; infinite for all at once.
        requests: How many.
        in_flight: At most so many at a time; 0 for no bound.
        ttft_ms, tpot_ms: Targets, declared in headers and asked of the tool's goodput.
        seed: Of arrivals and texts: the same for the loads that are compared.
    """

    url: str
    model: str
    tokenizer: Path
    rps: float
    requests: int
    in_flight: int = 0
    prompt_tokens: int = 128
    output_tokens: int = 32
    ttft_ms: int
    tpot_ms: int
    seed: int = SEED

    @property
    def headers(self) -> dict[str, str]:
        """What declares the targets to the gateway; an engine ignores them."""
        return {"x-slo-ttft-ms": str(self.ttft_ms), "x-slo-tpot-ms": str(self.tpot_ms)}


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool says of one load.

    Attributes:
        goodput_rps: Its goodput: requests per second that met both targets.
        ttft_p95_ms, tpot_p95_ms: Its 95th percentiles.
        completed, failed: Requests with and without a whole answer.
        throughput_rps: Completed requests per second.
    """

    goodput_rps: float
    ttft_p95_ms: float
    tpot_p95_ms: float
    completed: int
    failed: int
    throughput_rps: float

    @property
    def good(self) -> int:
        """Requests that met both targets. The tools divide by the time until the last answer, so that one late answer lowers all rates."""
        return round(self.goodput_rps / self.throughput_rps * self.completed) if self.throughput_rps else 0


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One load tool.

    Attributes:
        name: As its project writes it.
        command: Its command line, given its environment's `bin`, the load, and an empty folder for what it writes.
        read: Its figures, out of that folder.
        env: Environment variables that it needs.
    """

    name: str
    command: Callable[[Path, Ask, Path], list[str]]
    read: Callable[[Path], Figures]
    env: tuple[tuple[str, str], ...] = ()


def _vllm_command(place: Path, ask: Ask, folder: Path) -> list[str]:
    words = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", ask.url, "--model", ask.model]
    words += ["--tokenizer", str(ask.tokenizer), "--dataset-name", "random", "--ignore-eos", "--seed", str(ask.seed)]
    words += ["--random-input-len", str(ask.prompt_tokens), "--random-output-len", str(ask.output_tokens)]
    words += ["--num-prompts", str(ask.requests), "--request-rate", str(ask.rps), "--ready-check-timeout-sec", "0", "--disable-tqdm"]
    words += ["--max-concurrency", str(ask.in_flight)] if ask.in_flight else []
    words += ["--header", *(f"{name}={value}" for name, value in ask.headers.items())]
    words += ["--goodput", f"ttft:{ask.ttft_ms}", f"tpot:{ask.tpot_ms}", "--percentile-metrics", "ttft,tpot", "--metric-percentiles", "95"]
    return [str(place / "python"), "-c", VLLM_BENCH, *words, "--save-result", "--result-filename", str(folder / "result.json")]


def _vllm_read(folder: Path) -> Figures:
    said = _document(folder / "result.json")
    return Figures(
        goodput_rps=said["request_goodput"],
        ttft_p95_ms=said["p95_ttft_ms"],
        tpot_p95_ms=said["p95_tpot_ms"],
        completed=said["completed"],
        failed=said["failed"],
        throughput_rps=said["request_throughput"],
    )


def _guidellm_command(place: Path, ask: Ask, folder: Path) -> list[str]:
    spec = {
        "backend": {"kind": "openai_http", "target": ask.url, "model": ask.model, "http2": False, "extras": {"headers": ask.headers}},
        "profile": {"kind": "poisson", "rate": [ask.rps]},
        "constraints": [{"kind": "max_requests", "count": ask.requests}],
        "tokenizer": {"kind": "huggingface_auto", "model": str(ask.tokenizer)},
        "data": [{"kind": "synthetic_text", "prompt_tokens": ask.prompt_tokens, "output_tokens": ask.output_tokens}],
        "seed": {"kind": "static", "value": ask.seed},
        "outputs": [{"kind": "json", "path": str(folder / "result.json")}],
        "metrics": {"kind": "generative", "sample_size": 0, "slo": {"ttft_ms": ask.ttft_ms, "tpot_ms": ask.tpot_ms}},
    }
    scenario = folder / "scenario.json"
    scenario.write_text(json.dumps({"spec": spec}))
    return [str(place / "guidellm"), "run", "--config", str(scenario), "--disable-console"]


def _guidellm_read(folder: Path) -> Figures:
    benchmark = _document(folder / "result.json")["benchmarks"][0]
    metrics, duration_s = benchmark["metrics"], benchmark["duration"]
    totals = metrics["request_totals"]
    # The means of its rates weigh every gap between two answers by itself and lie far above requests over time in a short run.
    good = metrics["slo_attainment"] * metrics["slo_determined_requests"]
    return Figures(
        goodput_rps=good / duration_s,
        ttft_p95_ms=metrics["time_to_first_token_ms"]["successful"]["percentiles"]["p95"],
        tpot_p95_ms=metrics["inter_token_latency_ms"]["successful"]["percentiles"]["p95"],
        completed=totals["successful"],
        failed=totals["errored"] + totals["incomplete"],
        throughput_rps=totals["successful"] / duration_s,
    )


def _aiperf_command(place: Path, ask: Ask, folder: Path) -> list[str]:
    words = ["profile", "--model", ask.model, "--url", ask.url, "--endpoint-type", "chat", "--streaming", "--ui", "none"]
    words += ["--tokenizer", str(ask.tokenizer), "--random-seed", str(ask.seed), "--no-gpu-telemetry", "--no-server-metrics"]
    words += ["--isl", str(ask.prompt_tokens), "--osl", str(ask.output_tokens), "--extra-inputs", "ignore_eos:true"]
    words += ["--request-rate", str(ask.rps), "--arrival-pattern", "poisson", "--request-count", str(ask.requests), "--workers-max", "2"]
    # It turns a header's value that looks like a number into one, and then refuses it: a leading zero keeps the value a text.
    words += ["--header", *(f"{name}:0{value}" for name, value in ask.headers.items())]
    words += ["--goodput", f"time_to_first_token:{ask.ttft_ms} inter_token_latency:{ask.tpot_ms}"]
    return [str(place / "aiperf"), *words, "--artifact-dir", str(folder)]


def _aiperf_read(folder: Path) -> Figures:
    found = sorted(folder.rglob("profile_export_aiperf.json"))
    said = _document(found[0] if found else folder / "profile_export_aiperf.json")
    failed: Mapping[str, Any] = said.get("error_request_count") or {}
    return Figures(
        goodput_rps=said["goodput"]["avg"],
        ttft_p95_ms=said["time_to_first_token"]["p95"],
        tpot_p95_ms=said["inter_token_latency"]["p95"],
        completed=int(said["request_count"]["avg"]),
        failed=int(failed.get("avg", 0)),
        throughput_rps=said["request_throughput"]["avg"],
    )


OFFLINE = (("HF_HUB_OFFLINE", "1"),)
VLLM, GUIDELLM, AIPERF = (
    Tool(name="vllm bench serve", command=_vllm_command, read=_vllm_read, env=OFFLINE),
    # Left alone it starts ten processes, which take a small machine's cores from the engine that they measure.
    Tool(name="guidellm", command=_guidellm_command, read=_guidellm_read, env=(*OFFLINE, ("GUIDELLM__MAX_WORKER_PROCESSES", "2"))),
    # With that variable it takes a tokenizer from its download cache only, and none from a directory.
    Tool(name="aiperf", command=_aiperf_command, read=_aiperf_read),
)


def figures(tool: Tool, folder: Path) -> Figures:
    """What the tool wrote into the folder.

    Raises:
        StudyError: A figure is not where this version of the tool is known to write it.
    """
    try:
        return tool.read(folder)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise StudyError(f"{tool.name}: no such figure in what it wrote: {type(error).__name__} {error}") from error


def _document(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise StudyError(f"{path.name}: {error.strerror}; the tool wrote no result") from error
