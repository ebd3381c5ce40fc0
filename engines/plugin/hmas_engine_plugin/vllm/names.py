"""Which names a client may know a request by, from the id that it has inside the engine. Pure.

vLLM makes its inner id out of the client's `X-Request-Id`: for X it is `chatcmpl-X` from chat, `cmpl-X-0` for the first prompt of a
completion, each with `-` and 8 random hexadecimal digits behind it since ids are made unique, and with `0_` before it for the first of
several answers (`n`).
"""

import re

_CHILD = re.compile(r"\d+_")
_RANDOM = re.compile(r"-[0-9a-f]{8}\Z")
_PROMPT = re.compile(r"-\d+\Z")


def names_of(inner: str) -> set[str]:
    """The inner id itself, the answer's id as the client reads it, and the client's own request id."""
    names = {inner}
    plain = _CHILD.sub("", inner, count=1) if _CHILD.match(inner) else inner
    # Whether ids are made unique is a setting, and a client's own id may end in 8 such digits too: so both readings count.
    for outer in {plain, _RANDOM.sub("", plain)}:
        if outer.startswith("chatcmpl-"):
            names |= {outer, outer.removeprefix("chatcmpl-")}
        elif outer.startswith("cmpl-") and _PROMPT.search(outer):
            answer = _PROMPT.sub("", outer)
            names |= {outer, answer, answer.removeprefix("cmpl-")}
        else:
            names.add(outer)
    return names
