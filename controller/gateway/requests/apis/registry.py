"""The paths that the gateway serves, and the API that each belongs to."""

from collections.abc import Mapping

from hmas.controller.core.bodies.messages import COUNT_TOKENS, MESSAGES
from hmas.controller.core.bodies.responses import RESPONSES
from hmas.controller.core.request_body import CHAT, COMPLETIONS
from hmas.controller.gateway.requests.apis.api import Api
from hmas.controller.gateway.requests.apis.messages import MessagesApi
from hmas.controller.gateway.requests.apis.responses import ResponsesApi

COMPLETED = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
"""Paths of requests that are queued."""
FRONT_END = frozenset({COUNT_TOKENS, "/tokenize", "/detokenize"})
"""Paths that an engine's API server answers by itself: an answer shows nothing about the engine behind it."""
PASSED = ("/v1/embeddings", COUNT_TOKENS, "/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score", "/tokenize", "/detokenize")
"""Paths of requests that pass through without the queue."""

_COMPLETIONS, _OPENAI, _MESSAGES = Api(keeps_form=True), Api(), MessagesApi()
_BY_PATH: Mapping[str, Api] = {
    CHAT: _COMPLETIONS,
    COMPLETIONS: _COMPLETIONS,
    RESPONSES: ResponsesApi(),
    MESSAGES: _MESSAGES,
}


def api_of(path: str) -> Api:
    """The API of a path, by which errors are written; OpenAI's for a path that is not served."""
    found = _BY_PATH.get(path)
    if found is None:
        return _MESSAGES if path.startswith(MESSAGES + "/") else _OPENAI
    return found
