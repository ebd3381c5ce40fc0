"""How training rows are sent: with histories and system prompts, conversations as their messages, commands in system prompts."""

from collections import Counter

import numpy as np
from typing_kit import known

from hmas.agents.perception.training.clients import (
    ANSWERED_CHARS,
    ASKED_CHARS,
    JUDGING_OPENERS,
    TRAINING_OPENERS,
    Clients,
    Exchanges,
    commanded_by_system,
    conversation,
    vary,
)
from hmas.agents.perception.training.data import Row
from hmas.controller.core.types import TaskType

TALK = "You book tables.\nUser: hello\nAssistant: hi\nUser: a table for two\nAssistant:"
COMMAND = "Translate to French:\nThe harbour is closed until Monday, and the ferry waits.\nThe mayor is not amused."


def row(prompt: str, task: TaskType = TaskType.QA) -> Row:
    return Row(prompt=prompt, task=task, source="s", prompt_chars=len(prompt))


def test_rows_are_sent_in_every_shape_and_the_question_stays():
    rng, clients = np.random.default_rng(1), Clients([row(f"What is {number}?") for number in range(50)])
    views = [clients.view(row("Who was Ada?"), rng) for _ in range(400)]
    assert {view.excerpt for view in views} == {"Who was Ada?"}
    turns = Counter(view.turns for view in views)
    assert {0, 1, 2, 3, 9, 31} <= turns.keys()
    assert sum(bool(view.history) for view in views) > 60
    assert len({view.system for view in views}) > 60
    hidden = clients.view(row("Who was Ada?"), rng, features_only=True)
    assert (hidden.excerpt, hidden.system, hidden.history, hidden.question_chars) == ("", "", "", len("Who was Ada?"))


def test_written_conversations_become_messages():
    assert conversation(TALK) == [
        {"role": "system", "content": "You book tables."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "a table for two"},
    ]
    assert conversation("What is the capital of Peru?") is None
    assert conversation("User: hi\nAssistant: hello") is None
    rng, clients = np.random.default_rng(1), Clients([row("x")])
    views = [clients.view(row(TALK, TaskType.DIALOGUE), rng) for _ in range(60)]
    assert any(view.excerpt == "a table for two" and view.history == "hello\nhi" and view.system == "You book tables." for view in views)


def test_a_command_may_stand_in_the_system_prompt():
    rng = np.random.default_rng(1)
    found = [known(commanded_by_system(COMMAND, rng)) for _ in range(20)]
    assert all(messages[0]["content"].endswith("Translate to French:") for messages in found)
    assert {messages[1]["content"] for messages in found} == {COMMAND.partition("\n")[2]}
    after = known(commanded_by_system("The ferry waits for nobody, and the harbour is closed.\nTranslate to French.", rng))
    assert (after[0]["content"].endswith("Translate to French."), after[1]["content"][:9]) == (True, "The ferry")
    inline = known(commanded_by_system("Translate to French: The ferry waits for nobody.", rng))
    assert inline[1]["content"] == "The ferry waits for nobody."
    assert commanded_by_system("One line only", rng) is None


def test_variants_keep_label_and_licence():
    rng, one = np.random.default_rng(2), row(COMMAND, TaskType.TRANSLATION)
    variants = [vary(one, rng) for _ in range(200)]
    assert {(variant.task, variant.source) for variant in variants} == {(TaskType.TRANSLATION, "s")}
    assert {COMMAND, COMMAND.lower(), COMMAND.replace("\n", " ")} < {variant.prompt for variant in variants}
    assert all(variant.prompt_chars >= len(variant.prompt) for variant in variants)


def test_exchanges_are_bounded_and_those_for_judging_begin_otherwise():
    assert not set(TRAINING_OPENERS) & set(JUDGING_OPENERS)
    rng = np.random.default_rng(3)
    drawn = Exchanges(["long " * 900, "short"], holdout=True).draw(300, rng)
    assert max(len(asked) for asked, _ in drawn) <= ASKED_CHARS
    assert max(len(answered) for _, answered in drawn) <= ANSWERED_CHARS + 60
    assert not [answered for _, answered in drawn if answered.startswith(TRAINING_OPENERS)]
    assert Exchanges([]).draw(2, rng)
