"""The CLI finds the operators' token by itself, and sends it to no other machine."""

import hashlib
from pathlib import Path

import pytest

from hmas.cli.admin import connect
from hmas.cli.main import main
from hmas.controller.admin.client import AdminClient
from hmas.controller.admin.token import kept_token, new_secret
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.controller.core.errors import AdminError


@pytest.fixture(autouse=True)
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HMAS_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("HMAS_ADMIN_URL", raising=False)
    monkeypatch.delenv("HMAS_ADMIN_TOKEN", raising=False)
    return kept_token(tmp_path / ADMIN_TOKEN_FILE)


def sent(client: AdminClient, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The headers of a call that nobody answers."""
    seen: dict[str, str] = {}

    def request(_connection: object, _method: str, _path: str, *, body: object, headers: dict[str, str]) -> None:
        assert body is None
        seen.update(headers)
        raise OSError("nobody is there")

    monkeypatch.setattr("http.client.HTTPConnection.connect", lambda _connection: None)
    monkeypatch.setattr("http.client.HTTPConnection.request", request)
    with pytest.raises(Exception, match="cannot reach"):
        client.status()
    return seen


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9", "http://localhost:9", "http://[::1]:9"])
def test_it_goes_to_a_gateway_on_this_machine(token: str, monkeypatch: pytest.MonkeyPatch, url: str | None):
    assert sent(connect(url, None), monkeypatch)["authorization"] == f"Bearer {token}"


def test_it_goes_to_no_other_machine(monkeypatch: pytest.MonkeyPatch):
    assert "authorization" not in sent(connect("http://192.0.2.1:8081", None), monkeypatch)


def test_the_variable_stands_above_the_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HMAS_ADMIN_TOKEN", "mine")
    assert sent(connect("http://192.0.2.1:8081", None), monkeypatch)["authorization"] == "Bearer mine"
    assert sent(connect(None, None), monkeypatch)["authorization"] == "Bearer mine"


def test_a_line_end_behind_the_token_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HMAS_ADMIN_TOKEN", "mine\n")
    assert sent(connect(None, None), monkeypatch)["authorization"] == "Bearer mine"


def test_a_token_that_cannot_be_sent_is_told_and_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("http.client.HTTPConnection.connect", lambda _connection: None)
    for wrong in ("mi\nne", "mine\u20ac"):
        monkeypatch.setenv("HMAS_ADMIN_TOKEN", wrong)
        with pytest.raises(AdminError, match="cannot be sent") as refusal:
            connect(None, None).status()
        assert "mi" not in str(refusal.value)


def test_a_new_key_is_of_the_same_form(capsys: pytest.CaptureFixture[str]):
    assert main(["key", "new", "--admin"]) == 0
    out = capsys.readouterr().out
    secret = out.split()[1]
    assert len(secret) == len(new_secret())
    assert hashlib.sha256(secret.encode()).hexdigest() in out
