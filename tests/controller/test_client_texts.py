"""What clients are told of an engine's failure has no address of the inner network in it."""

import pytest

from hmas.controller.gateway.errors import without_addresses


@pytest.mark.parametrize(
    "address",
    [
        "http://10.0.0.5:8000/v1/models",
        "https://gpu-0.internal",
        "10.0.0.5",
        "10.0.0.5:8000",
        "[fd00::1]:8000",
        "gpu-0.internal:8000",
        "localhost:8101",
        "('127.0.0.1', 8101)",
        "('::1', 8101, 0, 0)",
    ],
)
def test_addresses_are_taken_out(address: str):
    assert without_addresses(f"engine a: {address} does not answer") == "engine a: (address) does not answer"


@pytest.mark.parametrize(
    "text",
    ["engine sim-1: silent for 0.2 s", "the engine answered 500: out of memory", "vLLM 0.32.0 at 12:30", "status:500", "reset-after:3"],
)
def test_all_else_stays(text: str):
    assert without_addresses(text) == text
