"""What tests of perception share: a request for a summary and how it ended, stored models that know words, and a started agent."""

import json
from pathlib import Path
from typing import Any

from hmas_lab.memory_bus import MemoryBus
from message_kit import completed, request_notice

from hmas.agents.model_store.card import ModelCard
from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception.agent import PerceptionAgent, make_agent
from hmas.agents.perception.reading import TASKS, Reading
from hmas.agents.runtime.work import Deferred
from hmas.controller.config.schema import AgentsConfig, Config
from hmas.controller.core.messages import Completion, Event, RequestFeatures, RequestNotice
from hmas.controller.core.types import TaskType

SUMMARY = "Summarize this article: the council met and talked about the bridge"


def notice(request_id: str = "r", excerpt: str = SUMMARY, **changes: Any) -> RequestNotice:
    return request_notice(request_id, excerpt=excerpt, **changes)


def completion(request_id: str, output_tokens: int, **changes: Any) -> Completion:
    return completed(request_id, **({"prompt_tokens": 300, "output_tokens": output_tokens} | changes))


class WordReader:
    """Knows words: prompts with one are of the task that stands beside it, and may have lengths by another one.

    It fails while `broken.txt` lies in its folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        content = json.loads((folder / "word.json").read_text())
        self.name = f"word {content['word']}"
        self._word, self._place, self._lengths = content["word"], list(TASKS).index(content["task"]), content.get("lengths", {})

    def read(self, prompts):
        if (self._folder / "broken.txt").exists():
            raise RuntimeError("the model has left")
        return [self._reading(prompt.excerpt) for prompt in prompts]

    def _reading(self, text: str) -> Reading:
        found = [0.0] * len(TASKS)
        found[self._place] = 0.9 if self._word in text else 0.0
        lengths = next((tuple(logs) for word, logs in self._lengths.items() if word in text), ())
        return Reading(probabilities=tuple(found), log_lengths=lengths)


def config(tmp_path: Path, **agents) -> Config:
    return Config(state_dir=str(tmp_path / "state"), agents=AgentsConfig(**agents))


def add(store: ModelStore, tmp_path: Path, task: TaskType = TaskType.QA, **content) -> str:
    folder = tmp_path / f"trained-{len(store.list('perception'))}"
    folder.mkdir()
    (folder / "word.json").write_text(json.dumps({"word": "council", "task": task.value, **content}))
    return store.add("perception", folder, ModelCard(kind="perception", format="words"))


async def started(config: Config, bus: MemoryBus | None = None) -> PerceptionAgent:
    agent = make_agent(config)
    await agent.recover(bus or MemoryBus(), 100.0)
    return agent


def done(work, now_s: float = 100.0) -> list:
    """What an agent posts, its work done at once."""
    return work.finish(work.compute(), now_s) if isinstance(work, Deferred) else work


def ask(agent: PerceptionAgent, *notices: RequestNotice, now_s: float = 100.0) -> list[RequestFeatures]:
    return [message for message in done(agent.handle(notices, now_s), now_s) if isinstance(message, RequestFeatures)]


def events(messages) -> list[tuple[str, str, str]]:
    return [(message.kind, message.before, message.after) for message in messages if isinstance(message, Event)]
