"""Derives the names under which a client may know a request from its id inside the engine. Pure.

vLLM makes its inner id from the client's `X-Request-Id`. For X it is `chatcmpl-X` for chat and `cmpl-X-0` for the first prompt of a
completion. Each is followed by `-` and 8 random hexadecimal digits, which make it unique, and the first of several answers (`n`) has the
prefix `0_`.
"""

import re

_CHILD = re.compile(r"\d+_")
_RANDOM = re.compile(r"-[0-9a-f]{8}\Z")
_PROMPT = re.compile(r"-\d+\Z")


def names_of(inner: str) -> set[str]:
    """The inner id itself, the answer's id as the client receives it, and the client's own request id."""
    names = {inner}
    plain = _CHILD.sub("", inner, count=1) if _CHILD.match(inner) else inner
    # Unique ids can be switched off, and a client's own id may also end in 8 such digits: so both readings are returned.
    for outer in {plain, _RANDOM.sub("", plain)}:
        if outer.startswith("chatcmpl-"):
            names |= {outer, outer.removeprefix("chatcmpl-")}
        elif outer.startswith("cmpl-") and _PROMPT.search(outer):
            answer = _PROMPT.sub("", outer)
            names |= {outer, answer, answer.removeprefix("cmpl-")}
        else:
            names.add(outer)
    return names
