"""What two parsers could read in two ways is refused, whole, with an error in JSON; nothing behind it is taken for a request."""

import pytest
from http_kit import HOST, serving

START = b"POST /a HTTP/1.1\r\n" + HOST
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"

REFUSED: dict[str, tuple[bytes, int]] = {
    "content-length and transfer-encoding": (START + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "transfer-encoding and content-length": (START + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (START + b"content-length: 4\r\ncontent-length: 5\r\n\r\nabcde", 400),
    "two equal lengths": (START + b"content-length: 4\r\ncontent-length: 4\r\n\r\nabcd", 400),
    "a list of lengths": (START + b"content-length: 4, 4\r\n\r\nabcd", 400),
    "a signed length": (START + b"content-length: +4\r\n\r\nabcd", 400),
    "a negative length": (START + b"content-length: -1\r\n\r\n", 400),
    "a length in hexadecimal": (START + b"content-length: 0x4\r\n\r\nabcd", 400),
    "an empty length": (START + b"content-length: \r\n\r\n", 400),
    "an endless length": (START + b"content-length: 99999999999999999999999\r\n\r\n", 400),
    "a long length": (START + b"content-length: 1000000000000000000\r\n\r\n", 400),
    "another coding": (START + b"transfer-encoding: gzip\r\n\r\n", 400),
    "a coding before chunked": (START + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "a coding that looks like chunked": (START + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (START + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
    "two codings": (START + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n", 400),
    "chunked in HTTP/1.0": (b"POST /a HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a folded line": (START + b"a: b\r\n c: d\r\n\r\n", 400),
    "a folded line by a tab": (START + b"a: b\r\n\tc\r\n\r\n", 400),
    "a bare LF between headers": (START + b"a: b\nc: d\r\n\r\n", 400),
    "a bare LF after the request line": (b"GET /a HTTP/1.1\nhost: x\r\n\r\n", 400),
    "a bare CR": (START + b"a: b\rc: d\r\n\r\n", 400),
    "a space before the colon": (START + b"content-length : 4\r\n\r\nabcd", 400),
    "a space before the first header": (b"GET /a HTTP/1.1\r\n host: x\r\n\r\n", 400),
    "NUL in a value": (START + b"a: b\0c\r\n\r\n", 400),
    "NUL in a name": (START + b"a\0: b\r\n\r\n", 400),
    "NUL in the path": (b"GET /\0 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "a line without a colon": (START + b"abc\r\n\r\n", 400),
    "a header without a name": (START + b": abc\r\n\r\n", 400),
    "a method in lower case": (b"get /a HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "an unknown method": (b"FOO /a HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "no host": (b"GET /a HTTP/1.1\r\n\r\n", 400),
    "two hosts": (START + b"Host: y\r\n\r\n", 400),
    "two equal hosts": (START + HOST + b"\r\n", 400),
    "two hosts in two cases": (b"GET /a HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n", 400),
    "two keys": (START + b"authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n", 400),
    "two keys in two cases": (START + b"authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400),
    "two lengths in two cases": (START + b"content-length: 4\r\nContent-Length: 5\r\n\r\nabcde", 400),
    "two codings in two cases": (START + b"Transfer-Encoding: cow\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "an unknown coding second": (START + b"transfer-encoding: chunked\r\nTransfer-Encoding: cow\r\n\r\n0\r\n\r\n", 400),
    "two content types": (START + b"content-type: text/plain\r\nContent-Type: application/json\r\n\r\n", 400),
    "two expectations": (START + b"expect: 100-continue\r\nExpect: 100-continue\r\ncontent-length: 1\r\n\r\n", 400),
    "HTTP/2.0": (b"GET /a HTTP/2.0\r\nhost: x\r\n\r\n", 505),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/0.9": (b"GET /a\r\n\r\n", 505),
    "TLS": (b"\x16\x03\x01\x02\x00\x01", 400),
    "two empty lines first": (b"\r\n\r\n" + START + b"\r\n", 400),
}

BAD_CHUNKS = {
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "a signed size": b"+3\r\nabc\r\n0\r\n\r\n",
    "a size with a prefix": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a size with an underscore": b"1_0\r\nabc\r\n0\r\n\r\n",
    "a size before a space": b"3 \r\nabc\r\n0\r\n\r\n",
    "a negative size": b"-3\r\nabc\r\n0\r\n\r\n",
    "a size of 16 digits": b"0000000000000003\r\nabc\r\n0\r\n\r\n",
    "a size that ends with a bare LF": b"3\nabc\r\n0\r\n\r\n",
    "a chunk shorter than its size": b"5\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": b"2\r\nabc\r\n0\r\n\r\n",
    "a chunk that ends with a bare LF": b"3\r\nabc\n0\r\n\r\n",
    "an extension with a control character": b"3;a\0b\r\nabc\r\n0\r\n\r\n",
    "an extension without an end": b"3;" + b"a" * 300 + b"\r\nabc\r\n0\r\n\r\n",
    "a trailer that is no field": b"3\r\nabc\r\n0\r\nGET / HTTP/1.1\r\n\r\n",
    "a folded trailer": b"3\r\nabc\r\n0\r\na: b\r\n c\r\n\r\n",
    "a trailer with a bare LF": b"3\r\nabc\r\n0\r\na: b\nc: d\r\n\r\n",
    "a trailer without an end": b"3\r\nabc\r\n0\r\n" + b"a: b\r\n" * 10 + b"c" * 9000,
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_ambiguous_is_refused_and_ends_the_connection(case: str):
    data, status = REFUSED[case]
    counted: list[str] = []
    async with serving() as http, http.client() as client:
        http.server.state.on_refused = counted.append
        client.send(data + SMUGGLED)
        answer = await client.answer()
        assert await client.closed()
        assert http.seen == []
    assert answer.status == status
    assert answer.code in {"malformed_http", "unsupported_coding", "unsupported_version"}
    assert counted in ([answer.code], []), "those of a body reach the handler, which counts them"
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("case", BAD_CHUNKS)
@pytest.mark.parametrize("dripped", [False, True])
async def test_a_malformed_chunked_body_is_refused(case: str, dripped: bool):
    data = START + b"transfer-encoding: chunked\r\n\r\n" + BAD_CHUNKS[case]
    async with serving() as http, http.client() as client:
        for piece in [data[:80], *(data[at : at + 1] for at in range(80, len(data)))] if dripped else [data]:
            client.send(piece)
        client.send(SMUGGLED)
        answer = await client.answer()
        assert await client.closed()
        assert all(path == "/a" for _, path, _ in http.seen)
    assert (answer.status, answer.code) == (400, "malformed_http")


@pytest.mark.parametrize(
    "head",
    [b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 3_000 + b"\r\n"],
    ids=["a long path", "many headers"],
)
@pytest.mark.parametrize("with_end", [True, False])
async def test_an_oversized_head_is_refused(head: bytes, with_end: bool):
    async with serving() as http, http.client() as client:
        client.send(head if with_end else head[:-4])
        answer = await client.answer()
        assert await client.closed()
        assert http.seen == []
    assert (answer.status, answer.code) == (431, "headers_too_large")


async def test_an_expectation_that_is_not_known_is_refused():
    async with serving() as http, http.client() as client:
        client.send(START + b"expect: a-miracle\r\ncontent-length: 3\r\n\r\nabc")
        answer = await client.answer()
    assert (answer.status, answer.code) == (417, "expectation_failed")


async def test_a_body_beyond_the_limit_is_refused_before_it_is_there():
    async with serving(max_body_bytes=1000) as http:
        async with http.client() as client:
            client.send(START + b"content-length: 1001\r\n\r\n")
            stated = await client.answer()
            assert stated.headers["connection"] == "close"
        async with http.client() as client:
            client.send(START + b"transfer-encoding: chunked\r\n\r\n3e8\r\n" + b"x" * 1000 + b"\r\n")
            await client.writer.drain()
            client.send(b"1\r\nx\r\n")
            unstated = await client.answer()
        async with http.client() as client:
            client.send(START + b"content-length: 1000\r\n\r\n" + b"x" * 1000)
            fits = await client.answer()
    assert (stated.status, stated.code) == (unstated.status, unstated.code) == (413, "request_too_large")
    assert fits.status == 200


async def test_an_upgrade_is_declined_by_going_on():
    async with serving() as http, http.client() as client:
        client.send(START + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc")
        assert (await client.answer()).body == b"POST /a abc"
        client.send(b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.answer()).body == b"GET /b "
