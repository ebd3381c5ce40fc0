"""Asks an OpenAI-compatible chat endpoint one question, with limits on time and size. It blocks, so it runs in a thread."""

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from hmas.agents.meta.selectors.llm_answer import QUOTED, AnswerError
from hmas.controller.config.schema import AgentsConfig
from hmas.controller.core.errors import ConfigError
from hmas.engines.client import EngineClient
from hmas.engines.errors import EngineError

MAX_BYTES = 1 << 18
"""Most bytes of a whole answer; the longest allowed answer takes a few kilobytes."""


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class ChatEndpoint:
    """A client of one server.

    Args:
        url: Address of the server; without a path, `/v1` is used.
        api_key: Sent as a bearer token; empty for none.
        timeout_s: Limit for a whole question: name lookup, connection, headers and the last byte of the answer.
        setting: Where the address comes from, for the error.

    Raises:
        ConfigError: The address is not valid.
    """

    def __init__(self, url: str, api_key: str = "", *, timeout_s: float = 20.0, setting: str = "agents.meta_llm_url") -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise ConfigError(f"{setting} is {url!r}: {error}; allowed: http://HOST:PORT") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{setting} is {url!r}; allowed: http://HOST:PORT")
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._path = f"{parts.path.rstrip('/') or '/v1'}/chat/completions"
        self._api_key = api_key
        self._timeout_s = timeout_s

    def ask(self, body: bytes) -> str:
        """Returns the text of the first choice.

        Raises:
            AnswerError: No answer in time, an answer that is too large, an error status, or no text in the answer.
        """
        # The thread has no event loop, so it gets its own; closing the loop waits for nothing, not even for an unresolved name.
        loop = asyncio.new_event_loop()
        try:
            status, data = loop.run_until_complete(self._post(body))
        except (EngineError, OSError, ValueError) as error:
            # A ValueError means an impossible host name.
            raise AnswerError(str(error) or type(error).__name__) from error
        finally:
            loop.close()
        if status != 200:
            raise AnswerError(f"HTTP {status}: {_shown(data)!r}")
        try:
            choices = msgspec.json.decode(data, type=_Completion).choices
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise AnswerError(f"not a chat completion: {error}: {_shown(data)!r}") from error
        if not choices:
            raise AnswerError("a chat completion without a choice")
        if choices[0].finish_reason == "length":
            raise AnswerError("the answer was cut off at its max_tokens (meta: agents.meta_llm_max_tokens)")
        content = choices[0].message.content
        if not content:
            raise AnswerError(f"a chat completion without a text: {(choices[0].message.refusal or '')[:QUOTED]!r}")
        return content

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        # Each question uses a new connection: the next one comes many seconds later.
        name = f"at {self._base.rpartition('@')[2]}"  # what stands before an @ is secret
        client = EngineClient(name=name, url=self._base, api_key=self._api_key, connect_timeout_s=self._timeout_s)
        try:
            return await client.post(self._path, body, timeout_s=self._timeout_s, max_bytes=MAX_BYTES)
        finally:
            await client.close()


def configured_endpoint(agents: AgentsConfig, env: Mapping[str, str], *, timeout_s: float | None = None) -> ChatEndpoint:
    """The endpoint that the configuration names for meta; `timeout_s` in place of the configured one.

    Raises:
        ConfigError: It names none, or the address is not valid.
    """
    if not agents.meta_llm_url:
        raise ConfigError(
            "agents.meta_llm_url is empty; allowed: the address of an OpenAI-compatible server, such as http://127.0.0.1:8000"
        )
    key = env.get(agents.meta_llm_key_env, "") if agents.meta_llm_key_env else ""
    return ChatEndpoint(agents.meta_llm_url, key, timeout_s=timeout_s or agents.meta_llm_timeout_s)


def _shown(data: bytes) -> str:
    return data[:QUOTED].decode("utf-8", "replace")
