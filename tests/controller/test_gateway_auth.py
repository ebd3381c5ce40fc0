"""Who may ask, and what a tenant may claim."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from gateway_kit import TWO_TENANTS, chat, gateway_config, key_hash, running

from hmas.controller.config.section import TenantConfig
from hmas.controller.core.errors import ConfigError
from hmas.controller.core.types import Request
from hmas.controller.gateway.errors import ApiError
from hmas.controller.gateway.requests import completion
from hmas.controller.gateway.requests.auth import MAX_ANONYMOUS_TENANTS, Authenticator

ACME = {"authorization": "Bearer sk-acme"}
ZETA = {"authorization": "Bearer sk-zeta"}
GUARDED: dict[str, Any] = {"tenants": TWO_TENANTS, "gateway": gateway_config(no_auth=False)}


async def test_keys_map_to_tenants(tmp_path: Path):
    async with running(tmp_path, **GUARDED) as rig:
        assert (await rig.post(chat(), headers=ACME)).status == 200
        assert (await rig.post(chat(), headers=ZETA)).status == 200
        assert (await rig.get("/v1/models", headers=ZETA)).status == 200
        assert (await rig.post({"model": "tiny", "input": "x"}, "/v1/embeddings", headers=ZETA)).status == 200
        assert {completion.tenant for completion in await rig.completions()} == {"acme", "zeta"}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({"authorization": "Bearer "}, "missing_api_key"),
        ({"authorization": "Basic sk-acme"}, "missing_api_key"),
        ({"authorization": "Bearer wrong"}, "invalid_api_key"),
        ({"authorization": f"Bearer {key_hash('sk-acme')}"}, "invalid_api_key"),
    ],
)
async def test_without_a_good_key_nothing_is_served(tmp_path: Path, headers: dict[str, str], code: str):
    async with running(tmp_path, **GUARDED) as rig:
        for answer in (
            await rig.post(chat(), headers=headers),
            await rig.post({"model": "tiny", "input": "x"}, "/v1/embeddings", headers=headers),
            await rig.get("/v1/models", headers=headers),
        ):
            assert (answer.status, answer.error["code"]) == (401, code)
            assert answer.headers["www-authenticate"] == "Bearer"
        assert (await rig.get("/health")).status == 200
        assert rig.sims[0].bodies == []


@pytest.mark.parametrize("name", ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"])
async def test_a_forged_tenant_gets_403(tmp_path: Path, name: str):
    async with running(tmp_path, **GUARDED) as rig:
        forged = await rig.post(chat(), headers={**ZETA, name: "acme"})
        own = await rig.post(chat(), headers={**ZETA, name: "zeta"})
        label = await rig.post(chat(), headers={**ZETA, name: "batch-7"})
        tenants = {completion.tenant for completion in await rig.completions()}
    assert (forged.status, forged.error["code"]) == (403, "tenant_mismatch")
    assert "'zeta'" in forged.error["message"]
    assert own.status == label.status == 200
    assert tenants == {"zeta"}, "a label inside a tenant grants nothing"


async def test_claims_are_clamped_by_the_tenant(tmp_path: Path):
    async with running(tmp_path, **GUARDED) as rig:
        await rig.post(chat(), headers={**ACME, "x-slo-ttft-ms": "1", "x-llm-d-slo-tpot-ms": "7.5"})
        (completion,) = await rig.completions()
    assert (completion.ttft_slo_ms, completion.tpot_slo_ms) == (500, 7.5)


async def test_a_claimed_priority_is_clamped_in_the_body_too(tmp_path: Path):
    async with running(tmp_path, **GUARDED) as rig:
        allowed, asked = orjson.dumps(chat(priority=-3)), orjson.dumps(chat(priority=-90))
        await rig.post(allowed, headers=ACME)
        await rig.post(asked, headers=ACME)
        first, second = rig.sims[0].bodies
    assert first == allowed, "what is allowed goes on byte for byte"
    assert orjson.loads(second) == orjson.loads(asked) | {"priority": -5}


async def test_to_claim_no_priority_is_no_way_around_the_best_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tenants = {"acme": TenantConfig(key_sha256=[key_hash("sk-acme")], best_priority=4)}
    async with running(tmp_path, **GUARDED | {"tenants": tenants}) as rig:
        submitted: list[int] = []

        def record(**fields: Any) -> Request:
            submitted.append(fields["priority"])
            return Request(**fields)

        monkeypatch.setattr(completion, "Request", record)
        plain = orjson.dumps(chat())
        for body in (plain, orjson.dumps(chat(priority=-9)), orjson.dumps(chat(priority=9))):
            assert (await rig.post(body, headers=ACME)).status == 200
        first, second, third = rig.sims[0].bodies
    assert submitted == [4, 4, 9]
    assert first == plain, "nothing is written into a body that claims nothing"
    assert [orjson.loads(body)["priority"] for body in (second, third)] == [4, 9]


async def test_a_priority_that_bypasses_the_queue_is_clamped_too(tmp_path: Path):
    async with running(tmp_path, **GUARDED) as rig:
        asked = {"model": "tiny", "input": "x"}
        for body in (asked | {"priority": -90}, asked | {"priority": -3}, asked, asked | {"priority": "-90"}):
            assert (await rig.post(body, "/v1/embeddings", headers=ACME)).status == 200
        odd = await rig.post(asked | {"priority": "first"}, "/v1/embeddings", headers=ACME)
        bodies = [orjson.loads(body) for body in rig.sims[0].bodies]
    assert bodies == [asked | {"priority": -5}, asked | {"priority": -3}, asked, asked | {"priority": -5}]
    assert (odd.status, odd.error["param"]) == (400, "priority")


async def test_without_authentication_the_header_names_the_tenant(tmp_path: Path):
    async with running(tmp_path, tenants=TWO_TENANTS) as rig:
        await rig.post(chat())
        await rig.post(chat(), headers={"x-gateway-inference-fairness-id": "acme", "x-slo-ttft-ms": "1"})
        await rig.post(chat(), headers={"x-gateway-inference-fairness-id": "somebody"})
        tenants = {completion.tenant: completion.ttft_slo_ms for completion in await rig.completions()}
    assert set(tenants) == {"default", "acme", "somebody"}
    assert tenants["acme"] == 500


def test_names_without_authentication_are_bounded():
    door = Authenticator({}, no_auth=True)
    names = {door.identify({"x-gateway-inference-fairness-id": f"t{number}"}).tenant for number in range(MAX_ANONYMOUS_TENANTS + 50)}
    assert len(names) == MAX_ANONYMOUS_TENANTS + 1
    assert "default" in names


def test_an_ambiguous_header_is_refused_before_the_key_is_looked_at():
    door = Authenticator({"a": TenantConfig(key_sha256=[key_hash("k")])}, no_auth=False)
    with pytest.raises(ApiError, match="letters, digits"):
        door.identify({"x-gateway-inference-fairness-id": "é", "authorization": "Bearer k"})


@pytest.mark.parametrize("fields", [{"host": "0.0.0.0"}, {"admin_host": "0.0.0.0"}])
async def test_open_doors_beyond_loopback_are_refused(tmp_path: Path, fields: dict[str, str]):
    with pytest.raises(ConfigError, match="loopback"):
        async with running(tmp_path, gateway=gateway_config(**fields)):
            pass
