"""The rules: prompts of every class, commands over contents, other scripts, doubt, cost, and accuracy on public data where there is any."""

import gzip
import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmas.agents.perception.cues import CUES
from hmas.agents.perception.tagging import tag
from hmas.controller.core.types import TaskType

CHAT = "Ann: are you coming tonight?\nBob: sure, at eight\nAnn: great, bring wine\n"
PROMPTS = [
    ("Who wrote The Old Man and the Sea?", TaskType.QA),
    ("Context: The Nile flows north.\nQuestion: In which direction does the Nile flow?\nAnswer:", TaskType.QA),
    ("Which of the following is a mammal?\nA) trout\nB) bat\nC) gecko", TaskType.QA),
    ("User: my parcel is late\nAssistant: Which order is it?\nUser: number 77\nAssistant:", TaskType.DIALOGUE),
    ("You are a ship's doctor in 1820. Comfort a sailor with scurvy.", TaskType.DIALOGUE),
    ("Translate the following text into Portuguese:\nThe bridge is closed on Sundays.", TaskType.TRANSLATION),
    ("Give me a Korean version of this: see you next week", TaskType.TRANSLATION),
    ("German: Wo ist der Bahnhof?\nEnglish:", TaskType.TRANSLATION),
    ("请把下面这句话翻译成英文：今天天气很好。", TaskType.TRANSLATION),
    ("Extract all email addresses and phone numbers from this message: call 555-0100 or write to a@example.com", TaskType.EXTRACTION),
    ("List the named entities in this sentence: Maria flew from Oslo to Acme's office.", TaskType.EXTRACTION),
    ("Paraphrase: The meeting was put off because of the storm.", TaskType.PARAPHRASING),
    ("Rewrite this paragraph so that it sounds friendlier: Your invoice is overdue.", TaskType.PARAPHRASING),
    ("Write a Python function that merges two sorted lists.", TaskType.CODE_GENERATION),
    ("Why does this fail?\n```\nTypeError: unsupported operand\n```", TaskType.CODE_GENERATION),
    ("def add(a, b):\n    return a - b\n\nFix the bug in this code.", TaskType.CODE_GENERATION),
    ("Name three rivers. Your response should contain no commas and be in all lowercase.", TaskType.INSTRUCTION_FOLLOWING),
    ("Suggest a tagline for a bakery that opens at night.", TaskType.INSTRUCTION_FOLLOWING),
    ("Summarize the following article in three sentences:\nThe council met on Monday and ...", TaskType.SUMMARIZATION),
    (CHAT + "Summarize this dialogue.", TaskType.SUMMARIZATION),
    ("A long report on tides and winds.\n\nTL;DR:", TaskType.SUMMARIZATION),
    ("Write an email to my landlord about the broken heating.", TaskType.LETTER_DRAFTING),
    ("Draft a cover letter for a nursing position.", TaskType.LETTER_DRAFTING),
    ("A farmer has 12 hens and each lays 5 eggs a week. How many eggs does he collect in 3 weeks?", TaskType.MATH_REASONING),
    ("Prove that the sum of two even numbers is even.", TaskType.MATH_REASONING),
    ("Solve for x: 3x + 7 = 22", TaskType.MATH_REASONING),
    ("Write a persuasive essay on public libraries.", TaskType.ESSAY_GENERATION),
    ("Write a story about a lighthouse keeper who finds a map.", TaskType.LONG_FORM_GENERATION),
    ("Write a blog post of 1500 words on urban gardening.", TaskType.LONG_FORM_GENERATION),
    ("Prepare a literature review on microplastics in drinking water, with citations.", TaskType.RESEARCH_AND_COMMUNICATION),
]


@pytest.mark.parametrize(("prompt", "task"), PROMPTS, ids=[prompt[:40] for prompt, _ in PROMPTS])
def test_plain_prompts_of_every_class(prompt, task):
    assert tag(prompt).task is task


def test_every_class_has_rules_and_a_prompt():
    known = set(TaskType) - {TaskType.UNKNOWN}
    assert {cue.task for cue in CUES} == known
    assert {task for _, task in PROMPTS} == known


@pytest.mark.parametrize("text", ["", "   \n", "xqzt", "0000", "…"])
def test_nothing_to_go_by_is_unknown(text):
    assert tag(text).task is TaskType.UNKNOWN
    assert tag(text).confidence == 0.0


def test_a_clear_command_is_sure_and_a_hint_is_not():
    assert tag("Translate into French: good morning").confidence > 0.6
    assert tag("What is it?").confidence < 0.7
    assert tag("tell me something").confidence < tag("Summarize this article: ...").confidence


def test_a_command_at_the_end_of_a_long_text_is_found():
    text = "The river rose in the night and the town woke to water in the streets. " * 25
    assert tag(text + "\nSummarize the text above.").task is TaskType.SUMMARIZATION


def test_conversations_and_tools_speak_for_dialogue():
    assert tag("and then?", turns=5).task is TaskType.DIALOGUE
    assert tag("ok go on", has_tools=True).task is TaskType.DIALOGUE
    assert tag("Write a Python function that parses dates", has_tools=True, turns=4).task is TaskType.CODE_GENERATION


@given(st.text(max_size=2000))
def test_any_text_gets_a_tag(text):
    found = tag(text)
    assert 0.0 <= found.confidence < 1.0
    assert (found.task is TaskType.UNKNOWN) == (found.confidence == 0.0)


@pytest.mark.parametrize("unit", ["a", "1 ", "a: b\n", "how many ", "\\frac{", "user: ", "- x\n", "{;\n", "what ", "translate ", "ü"])
def test_no_rule_runs_away(unit):
    """Repetitive text is where patterns backtrack; measured in CPU time against the same length of prose."""
    from time import process_time

    def cost(text: str) -> float:
        begin = process_time()
        for _ in range(5):
            tag(text)
        return process_time() - begin

    text = (unit * 2000)[:2000]
    assert cost(text) < 0.15


@pytest.mark.slow
@pytest.mark.skipif("HMAS_DATA_DIR" not in os.environ, reason="HMAS_DATA_DIR names no folder of public data")
def test_accuracy_on_public_prompts(capsys):
    path = Path(os.environ["HMAS_DATA_DIR"]) / "prompts" / "typed_prompts.jsonl.gz"
    right, sure, sure_right, seen = (Counter[str]() for _ in range(4))
    with gzip.open(path, "rt") as lines:
        for row in map(json.loads, lines):
            prompt, task = row["prompt"], row["task_type"]
            found = tag(prompt if len(prompt) <= 2000 else prompt[:1200] + "\n...\n" + prompt[-800:])
            hit = found.task == task
            seen[task] += 1
            right[task] += hit
            sure[task] += found.confidence >= 0.5
            sure_right[task] += hit and found.confidence >= 0.5
    table = [
        f"{task:26}{seen[task]:6} right {right[task] / seen[task]:.3f}  sure {sure[task] / seen[task]:.3f}"
        f"  right where sure {sure_right[task] / max(1, sure[task]):.3f}"
        for task in sorted(seen)
    ]
    everything, where_sure = sum(right.values()) / sum(seen.values()), sum(sure_right.values()) / sum(sure.values())
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join([*table, f"all {everything:.3f}, where sure {where_sure:.3f}"]) + "\n")
    assert everything > 0.8
    assert where_sure > 0.88
