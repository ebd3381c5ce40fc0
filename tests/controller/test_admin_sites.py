"""Who may use the operators' API: the token that the gateway makes, web pages of others, and the form of a change."""

import asyncio
import stat
from pathlib import Path

import pytest
from gateway_kit import gateway_config, running

from hmas.controller.admin.token import kept_token, read_token
from hmas.controller.config.derived import ADMIN_TOKEN_FILE
from hmas.controller.core.errors import ConfigError

PAGE = "https://ops.example.com"
JSON = {"content-type": "application/json"}
FORCED = {"policy": "wfq", "author": "ana", "reason": "test"}


def bearer(folder: Path) -> dict[str, str]:
    return {"authorization": f"Bearer {read_token(folder / ADMIN_TOKEN_FILE)}"}


async def test_the_token_is_made_at_the_first_start_and_kept(tmp_path: Path):
    file = tmp_path / ADMIN_TOKEN_FILE
    async with running(tmp_path) as rig:
        token = read_token(file)
        assert len(token) > 40
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {token}"}):
            for method, path, document in (("GET", "/admin/status", None), ("POST", "/admin/policy", FORCED)):
                answer = await rig.admin(method, path, document, headers={**headers, **JSON})
                assert (answer.status, answer.error["code"]) == (401, "unauthorized")
        assert rig.gateway.control.directives.forced == ()
        assert (await rig.admin("GET", "/admin/status")).status == 200
    async with running(tmp_path) as rig:
        assert read_token(file) == token
        assert (await rig.admin("GET", "/admin/status")).status == 200


async def test_the_client_reads_the_token_by_itself(tmp_path: Path):
    async with running(tmp_path) as rig:
        assert (await asyncio.to_thread(rig.operator.status))["ready"]
        assert (await asyncio.to_thread(rig.operator.undrain_engine, "sim-1"))["released"] is False
        assert (await asyncio.to_thread(rig.operator.clear_overrides))["removed"] == []


def test_a_token_that_cannot_be_kept_is_said(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"cannot make the operators' token .* state_dir must be writable"):
        kept_token(tmp_path / "file" / ADMIN_TOKEN_FILE)
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match="is empty"):
        kept_token(tmp_path / "empty")


def test_a_token_that_others_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    token = kept_token(tmp_path / "state" / ADMIN_TOKEN_FILE)
    assert not caplog.records
    (tmp_path / "state" / ADMIN_TOKEN_FILE).chmod(0o644)
    assert kept_token(tmp_path / "state" / ADMIN_TOKEN_FILE) == token
    assert "other users" in caplog.text
    assert [path.name for path in (tmp_path / "state").iterdir()] == [ADMIN_TOKEN_FILE]


async def test_other_names_and_other_sites_are_refused_even_with_the_token(tmp_path: Path):
    async with running(tmp_path) as rig:
        for headers, code in (
            ({"host": "rebound.example.com"}, "host_not_allowed"),
            ({"origin": PAGE}, "origin_not_allowed"),
            ({"origin": "null"}, "origin_not_allowed"),
        ):
            answer = await rig.admin("POST", "/admin/policy", FORCED, headers={**bearer(tmp_path), **JSON, **headers})
            assert (answer.status, answer.error["code"]) == (403, code)
            assert "gateway.admin_allowed_" in answer.error["message"]
        assert rig.gateway.control.directives.forced == ()
        same = await rig.admin("GET", "/admin/status", headers={**bearer(tmp_path), "origin": rig.admin_url})
        assert same.status == 200


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/octet-stream"]
)
async def test_a_change_must_be_json_by_its_content_type(tmp_path: Path, content_type: str):
    async with running(tmp_path) as rig:
        # aiohttp's client adds a content type where there is a body and none is given.
        headers = {**bearer(tmp_path), **({"content-type": content_type} if content_type else {})}
        for method, path, document in (
            ("POST", "/admin/policy", FORCED),
            ("POST", "/admin/overrides/validate", {}),
            ("POST", "/admin/engines/sim-1/drain", None),
            ("DELETE", "/admin/overrides", {}),
        ):
            answer = await rig.admin(method, path, document, headers=headers)
            assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
            assert "application/json" in answer.error["message"]
        assert rig.gateway.control.directives.forced == ()
        # A DELETE without a body needs none.
        assert (await rig.admin("DELETE", "/admin/overrides", headers=bearer(tmp_path))).status == 200
        drained = await rig.admin(
            "POST", "/admin/policy", FORCED, headers={**bearer(tmp_path), "content-type": "application/json; charset=utf-8"}
        )
        assert drained.status == 200


async def test_an_allowed_page_may_ask_and_read(tmp_path: Path):
    settings = gateway_config(admin_allowed_origins=[PAGE], admin_allowed_hosts=["ops.example.com"])
    async with running(tmp_path, gateway=settings) as rig:
        asked = {"origin": PAGE, "access-control-request-method": "DELETE", "access-control-request-headers": "authorization"}
        answer = await rig.admin("OPTIONS", "/admin/overrides", headers=asked)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "DELETE" in answer.headers["access-control-allow-methods"]
        read = await rig.admin("GET", "/admin/status", headers={**bearer(tmp_path), "origin": PAGE, "host": "ops.example.com"})
        assert (read.status, read.headers["access-control-allow-origin"]) == (200, PAGE)
        refused = await rig.admin("GET", "/admin/status", headers={"origin": PAGE})
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, PAGE)
