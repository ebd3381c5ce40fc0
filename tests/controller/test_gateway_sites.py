"""Web pages of others on the public port: DNS rebinding, requests across sites, and pages that are allowed (CORS)."""

from pathlib import Path
from typing import Any

import pytest
from gateway_kit import TWO_TENANTS, Rig, chat, gateway_config, running

from hmas.controller.config.derived import admin_sites, public_sites
from hmas.controller.config.section import GatewayConfig

PAGE = "https://chat.example.com"
REBOUND = {"host": "rebound.example.com:8080"}
KEYS: dict[str, Any] = {"tenants": TWO_TENANTS}
ACME = {"authorization": "Bearer sk-acme"}


async def preflight(rig: Rig, origin: str) -> tuple[int, dict[str, str]]:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type,x-slo-ttft-ms"}
    async with rig.session.options(rig.url + "/v1/chat/completions", headers={"origin": origin, **asked}) as response:
        return response.status, {name.lower(): value for name, value in response.headers.items()}


async def test_a_name_that_was_pointed_at_this_machine_is_refused(tmp_path: Path):
    async with running(tmp_path) as rig:
        for answer in (await rig.post(chat(), headers=REBOUND), await rig.get("/metrics", headers=REBOUND)):
            assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
            assert "gateway.allowed_hosts" in answer.error["message"]
        assert rig.sims[0].bodies == []
        refused = 'hmas_refused_requests_total{code="host_not_allowed"} 2.0'
        assert refused in (await rig.get("/metrics")).body.decode()


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1", "[::1]:8080", "10.1.2.3:80", "LOCALHOST", "api.localhost", "localhost."])
async def test_addresses_and_loopback_names_are_served(tmp_path: Path, host: str):
    async with running(tmp_path) as rig:
        assert (await rig.post(chat(), headers={"host": host})).status == 200


async def test_configured_names_are_served_and_no_others(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(allowed_hosts=["llm.example.com"])) as rig:
        assert (await rig.post(chat(), headers={"host": "LLM.example.com:443"})).status == 200
        assert (await rig.post(chat(), headers={"host": "a.llm.example.com"})).status == 403


def test_every_name_is_served_beyond_loopback_where_a_key_is_asked_for():
    beyond = public_sites(GatewayConfig(host="0.0.0.0"))
    assert beyond.accepts_host("llm.example.com")
    assert not public_sites(GatewayConfig(host="0.0.0.0", allowed_hosts=["a.example.com"])).accepts_host("llm.example.com")
    assert public_sites(GatewayConfig(allowed_hosts=["*"])).accepts_host("llm.example.com")
    assert public_sites(GatewayConfig(host="gw.lan", allowed_hosts=["a"])).accepts_host("gw.lan:8080")
    assert not admin_sites(GatewayConfig(admin_host="0.0.0.0")).accepts_host("llm.example.com")
    assert admin_sites(GatewayConfig(admin_host="ops.lan")).accepts_host("ops.lan:8081")


def test_what_is_remembered_of_hosts_is_bounded():
    sites = public_sites(GatewayConfig())
    for port in range(2000):
        assert sites.accepts_host(f"localhost:{port}")
    assert len(sites.accepted) <= 256


async def test_a_page_of_another_site_gets_nothing_where_no_key_is_asked_for(tmp_path: Path):
    async with running(tmp_path) as rig:
        for origin in (PAGE, "null", "http://localhost:3000"):
            answer = await rig.post(chat(), headers={"origin": origin, "content-type": "text/plain"})
            assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
            assert "gateway.allowed_origins" in answer.error["message"]
        assert rig.sims[0].bodies == []
        assert (await rig.post(chat(), headers={"origin": rig.url})).status == 200, "a page that the gateway itself serves"
        status, headers = await preflight(rig, PAGE)
        assert status == 403
        assert "access-control-allow-origin" not in headers


async def test_with_keys_another_sites_page_is_served_but_cannot_read_the_answer(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(no_auth=False), **KEYS) as rig:
        answer = await rig.post(chat(), headers={"origin": PAGE, **ACME})
        assert answer.status == 200
        assert "access-control-allow-origin" not in answer.headers
        assert (await preflight(rig, PAGE))[0] == 405, "so the browser does not send it at all"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_allowed_page_reads_answers_and_their_headers(tmp_path: Path, stream: bool):
    settings = gateway_config(no_auth=False, allowed_origins=[PAGE])
    async with running(tmp_path, gateway=settings, **KEYS) as rig:
        status, asked = await preflight(rig, PAGE)
        answer = await rig.post(chat(stream=stream), headers={"origin": PAGE, **ACME})
        refused = await rig.post(chat(), headers={"origin": PAGE})
        others = await rig.post(chat(), headers={"origin": "https://other.example.com", **ACME})
    assert status == 200
    assert asked["access-control-allow-origin"] == PAGE
    assert "POST" in asked["access-control-allow-methods"]
    assert asked["access-control-allow-headers"] == "authorization,content-type,x-slo-ttft-ms"
    assert answer.status == 200
    assert answer.headers["x-hmas-policy"]
    assert (answer.headers["access-control-allow-origin"], answer.headers["access-control-expose-headers"]) == (PAGE, "*")
    assert answer.headers["vary"] == "origin"
    assert not stream or answer.events[-1] == "[DONE]"
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, PAGE), "so the page can tell its user"
    assert "access-control-allow-origin" not in others.headers


async def test_every_page_where_so_configured(tmp_path: Path):
    async with running(tmp_path, gateway=gateway_config(allowed_origins=["*"])) as rig:
        answer = await rig.post(chat(), headers={"origin": "null"})
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
        assert (await preflight(rig, PAGE))[1]["access-control-allow-origin"] == "*"


async def test_programs_notice_nothing(tmp_path: Path):
    async with running(tmp_path) as rig:
        answer = await rig.post(chat())
    assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]
