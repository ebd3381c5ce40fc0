"""The token heuristic stays near known counts of real tokenizers, and cheap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.engines.tokens import count_words, estimate_tokens

ENGLISH = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all because it is asleep. " * 20
CODE = "def add(a: int, b: int) -> int:\n    return a + b  # sum\n\nfor i in range(10):\n    print(add(i, 2 * i))\n" * 20
CHINESE = "请用简单的语言解释一下什么是大语言模型，以及它为什么会产生错误的回答。" * 20


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        # Bounds: 0.8 to 1.25 of cl100k's count for the Latin texts; between Qwen's and cl100k's for Chinese.
        (ENGLISH, 380, 600),
        (CODE, 700, 1150),
        (CHINESE, 440, 900),
        ("你好", 1, 3),
        ("😀" * 10, 15, 35),
        ("a" * 1000, 100, 300),
        ("12345678", 2, 8),
    ],
)
def test_near_the_truth(text, low, high):
    assert low <= estimate_tokens(text) <= high


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("=" * 7000, 111),
        ("\n".join(f"tests/test_{number}.py {'.' * 70} [ {number}%]" for number in range(24)), 507),
        ("| name | value |\n|------------------------|------------------------|\n" * 30, 360),
        ("=====  =====  ======\n A     B     A and B\n=====  =====  ======\n" * 20, 560),
        (("Some text here.\n\n" + "*" * 40 + "\n\n") * 20, 199),
    ],
)
def test_a_run_of_one_sign_is_few_tokens(text, tokens):
    """The truth is that of SmolLM2's tokenizer."""
    assert tokens / 2 <= estimate_tokens(text) <= 2 * tokens


def test_edges():
    assert estimate_tokens("") == 0
    assert estimate_tokens(" ") == 1
    assert estimate_tokens("\ud800") >= 1, "a lone surrogate from a JSON escape breaks nothing"


@given(st.text(max_size=300))
def test_never_negative_and_at_most_a_few_per_character(text):
    assert (len(text) > 0) <= estimate_tokens(text) <= 3 * len(text)


def test_a_sample_speaks_for_a_huge_text():
    short, long = estimate_tokens(ENGLISH * 25), estimate_tokens(ENGLISH * 2500)
    assert long == pytest.approx(100 * short, rel=0.02)


@given(st.one_of(st.text(), st.text(st.sampled_from("ab \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x00\x85\xa0\u2003é"))))
def test_words_are_those_that_splitting_gives(text):
    assert count_words(text, text.encode("utf-8", "replace")) == len(text.split())
