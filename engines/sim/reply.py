"""Renders answers: the bytes of OpenAI responses and of Prometheus metrics in vLLM's format."""

import base64
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import msgspec
import numpy as np
import orjson

from hmas.engines.base import EngineSnapshot
from hmas.engines.sim.profile import Profile
from hmas.engines.sim.text import WORDS, WORDS_JSON, logprob, split_text, word_index
from hmas.engines.sim.wire import Ask, Refused, check_model
from hmas.engines.tokens import estimate_tokens

DONE = b"data: [DONE]\n\n"
DIMENSIONS = 64
"""Of an embedding."""
MAX_INPUTS = 2048


class Tally:
    """Counts the tokens of all answers to one request, and which have ended: the last to end closes the stream."""

    __slots__ = ("_tokens", "_unfinished")

    def __init__(self, answers: int) -> None:
        self._tokens = [0] * answers
        self._unfinished = set(range(answers))

    @property
    def tokens(self) -> int:
        """Tokens of all answers so far."""
        return sum(self._tokens)

    def count(self, index: int, tokens: int) -> None:
        """Sets the number of tokens of answer `index`."""
        self._tokens[index] = tokens

    def end(self, index: int) -> bool:
        """Marks answer `index` as ended. Returns whether all have ended."""
        self._unfinished.discard(index)
        return not self._unfinished


class Reply:
    """One answer, rendered token by token or as a whole.

    The parts that are the same in each chunk are rendered once, so a token costs one join of byte strings.

    Answers to the same request differ in `index` and share a tally; it is None for the only answer.
    """

    __slots__ = ("_ask", "_finish", "_head", "_id", "_index", "_meta", "_pieces", "_seed", "_tally", "_text_offset")

    def __init__(self, ask: Ask, *, answer_id: str, model: str, created_s: int, index: int = 0, tally: Tally | None = None) -> None:
        self._ask = ask
        self._id = answer_id
        self._index = index
        self._tally = tally if tally is not None else Tally(1)
        # Each answer has different words.
        self._seed = ask.seed + index
        self._text_offset = 0
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        self._meta = {"id": answer_id, "object": kind, "created": created_s, "model": model}
        self._head = (
            b"data: " + orjson.dumps(self._meta)[:-1] + b',"choices":[{"index":%d,"' % index + (b'delta":' if ask.chat else b'text":')
        )
        self._finish = orjson.dumps(ask.finish)
        # The arguments are split over the output tokens, so that a call that is cut off keeps its first pieces.
        self._pieces = split_text(ask.tool.arguments, ask.output_tokens) if ask.tool is not None else None

    def chunk(self, position: int, *, first: bool, finished: bool) -> bytes:
        """The SSE events of one token.

        Args:
            position: 1 for the first token.
            first: Add the start of a stream before it (the role).
            finished: Add the end of a stream after it (finish reason, usage, `[DONE]`).
        """
        ask = self._ask
        opening = self._opening() if first and ask.chat else b""
        self._tally.count(self._index, position)
        usage = self._usage_field() if ask.continuous_usage else b""
        parts = (
            opening,
            self._head,
            self._delta(position, first=first),
            b',"logprobs":',
            b"null" if ask.top_logprobs is None else self._logprobs([position]),
            b',"finish_reason":',
            self._finish if finished else b"null",
            b',"stop_reason":null' if finished or not ask.chat else b"",
            b',"token_ids":null}]',
            usage,
            b"}\n\n",
            self._closing() if finished else b"",
        )
        return b"".join(parts)

    def broken_off(self, tokens: int) -> bytes:
        """The end of a stream whose request was aborted after `tokens` tokens of this answer."""
        self._tally.count(self._index, tokens)
        delta = b'{"content":""}' if self._ask.chat else b'""'
        end = b',"logprobs":null,"finish_reason":"abort","stop_reason":null,"token_ids":null}]}\n\n'
        return self._head + delta + end + self._closing()

    def choice(self, tokens: int, *, aborted: bool = False) -> dict[str, Any]:
        """This answer's first `tokens` tokens as a choice in the document of an answer that is not streamed."""
        ask = self._ask
        self._tally.count(self._index, tokens)
        positions = list(range(1, tokens + 1))
        text = "".join(self._word(position) for position in positions)
        choice: dict[str, Any] = {"index": self._index}
        if ask.chat:
            choice["message"] = self._message(text, tokens)
        else:
            choice["text"] = text
        wanted = ask.top_logprobs is not None
        choice["logprobs"] = orjson.Fragment(self._logprobs(positions)) if wanted else None
        return choice | {"finish_reason": "abort" if aborted else ask.finish, "stop_reason": None, "token_ids": None}

    def whole(self, choices: Sequence[dict[str, Any]]) -> bytes:
        """The document of an answer that is not streamed, with all choices."""
        kind = "chat.completion" if self._ask.chat else "text_completion"
        return orjson.dumps(self._meta | {"object": kind, "choices": list(choices), "usage": self._usage()})

    def _message(self, text: str, tokens: int) -> dict[str, Any]:
        if self._pieces is None or self._ask.tool is None:
            return {"role": "assistant", "content": text}
        arguments = "".join(self._pieces[:tokens])
        function = {"name": self._ask.tool.name, "arguments": arguments}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": self._call_id, "type": "function", "function": function}]}

    @property
    def _call_id(self) -> str:
        return f"call-{self._id.removeprefix('chatcmpl-')}" + (f"-{self._index}" if self._index else "")

    def _word(self, position: int) -> str:
        return WORDS[word_index(self._seed, position)]

    def _delta(self, position: int, *, first: bool) -> bytes:
        if self._pieces is None or self._ask.tool is None:
            word = WORDS_JSON[word_index(self._seed, position)]
            return b'{"content":%b}' % word if self._ask.chat else word
        call: dict[str, Any] = {"index": 0, "function": {"arguments": self._pieces[position - 1]}}
        if first:
            call = {"index": 0, "id": self._call_id, "type": "function", "function": {"name": self._ask.tool.name, **call["function"]}}
        return orjson.dumps({"tool_calls": [call]})

    def _opening(self) -> bytes:
        usage = self._usage_field() if self._ask.continuous_usage else b""
        role = b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return self._head + role + usage + b',"prompt_token_ids":null,"prompt_text":null}\n\n'

    def _closing(self) -> bytes:
        if not self._tally.end(self._index):
            return b""
        if not self._ask.include_usage:
            return DONE
        return b"data: " + orjson.dumps(self._meta | {"choices": [], "usage": self._usage()}) + b"\n\n" + DONE

    def _usage(self) -> dict[str, int]:
        prompt, tokens = self._ask.prompt_tokens, self._tally.tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}

    def _usage_field(self) -> bytes:
        return b',"usage":' + orjson.dumps(self._usage())

    def _logprobs(self, positions: list[int]) -> bytes:
        if self._ask.chat:
            return orjson.dumps({"content": [self._chat_logprob(position) for position in positions]})
        seed, top = self._seed, self._ask.top_logprobs or 0
        offsets = [self._text_offset]
        for position in positions:
            offsets.append(offsets[-1] + len(self._word(position)))
        self._text_offset = offsets[-1]
        ranked = [
            {WORDS[(word_index(seed, position) + rank) % len(WORDS)]: logprob(seed, position, rank) for rank in range(max(1, top))}
            for position in positions
        ]
        return orjson.dumps(
            {
                "text_offset": offsets[:-1],
                "token_logprobs": [logprob(seed, position) for position in positions],
                "tokens": [self._word(position) for position in positions],
                "top_logprobs": ranked,
            }
        )

    def _chat_logprob(self, position: int) -> dict[str, Any]:
        seed = self._seed
        ranked = []
        for rank in range(max(1, self._ask.top_logprobs or 0)):
            word = WORDS[(word_index(seed, position) + rank) % len(WORDS)]
            ranked.append({"token": word, "logprob": logprob(seed, position, rank), "bytes": list(word.encode())})
        return ranked[0] | {"top_logprobs": ranked[: self._ask.top_logprobs or 0]}


class _EmbeddingBody(msgspec.Struct):
    input: Any
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"


def embed(data: bytes, *, model: str) -> bytes:
    """The document with the embeddings of a body: unit vectors derived from the text, computed at once and outside the batch.

    Raises:
        Refused: The body is not JSON, the model is not served, or `input` is not a text, a token list or a list of those.
    """
    try:
        body = msgspec.json.decode(data, type=_EmbeddingBody)
    except msgspec.DecodeError as error:
        raise Refused(400, str(error)) from error
    check_model(body.model, model)
    inputs = body.input if isinstance(body.input, list) and body.input and isinstance(body.input[0], str | list) else [body.input]
    if len(inputs) > MAX_INPUTS:
        raise Refused(400, f"input: {len(inputs)} texts; allowed up to {MAX_INPUTS}", param="input")
    tokens = sum(_length(entry) for entry in inputs)
    rows = [{"object": "embedding", "index": i, "embedding": _encoded(entry, body.encoding_format)} for i, entry in enumerate(inputs)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return orjson.dumps({"object": "list", "model": model, "data": rows, "usage": usage})


def _length(entry: object) -> int:
    if isinstance(entry, str):
        return estimate_tokens(entry)
    if isinstance(entry, list) and entry and all(isinstance(token, int) for token in entry):
        return len(entry)
    raise Refused(400, "input: allowed is a text, a list of token ids, or a list of those", param="input")


def _encoded(entry: object, form: str) -> list[float] | str:
    seed = int.from_bytes(blake2b(orjson.dumps(entry), digest_size=8).digest(), "big")
    vector = np.random.default_rng(seed).standard_normal(DIMENSIONS).astype("<f4")
    vector /= np.linalg.norm(vector)
    if form == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    return [float(value) for value in vector]


def render_metrics(snapshot: EngineSnapshot, profile: Profile, *, model_name: str, ended: Mapping[str, int], stalled_s: float) -> bytes:
    """Prometheus metrics under vLLM's names, so that tools for vLLM can also read the embedded engine.

    The model's name is a label of every series; `ended` counts finished requests by finish reason, `stalled_s` is time lost to a busy host.
    """
    labels = f'engine="0",model_name="{model_name}"'
    pool = f'block_size="{profile.block_size}",num_gpu_blocks="{profile.kv_blocks}"'
    cache = f'{pool},enable_prefix_caching="{snapshot.caches_prefixes}",engine="0"'
    reasons = {f'{labels},finished_reason="{reason}"': count for reason, count in sorted(ended.items())}
    rows: list[tuple[str, str, Mapping[str, float]]] = [
        ("vllm:num_requests_running", "Number of requests in model execution batches.", {labels: snapshot.running}),
        ("vllm:num_requests_waiting", "Number of requests waiting to be processed.", {labels: snapshot.waiting}),
        ("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", {labels: snapshot.kv_usage or 0.0}),
        ("vllm:cache_config_info", "Information of the cache config.", {cache: 1}),
        ("vllm:num_preemptions_total", "Cumulative number of preemptions.", {labels: snapshot.preemptions_total}),
        ("vllm:prompt_tokens_total", "Number of prefill tokens processed.", {labels: snapshot.prompt_tokens_total}),
        ("vllm:generation_tokens_total", "Number of generation tokens.", {labels: snapshot.generation_tokens_total}),
        ("vllm:request_success_total", "Count of finished requests.", reasons),
        ("sim:stalled_seconds_total", "Time lost because the host did not run the engine in time.", {labels: stalled_s}),
    ]
    lines = []
    for name, text, samples in rows:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"]
        lines += [f"{name}{{{label}}} {value}" for label, value in samples.items()]
    return ("\n".join(lines) + "\n").encode()
