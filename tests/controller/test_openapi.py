"""The OpenAPI documents of both ports: they name every route, and schemathesis finds the product to be as they say."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway_kit import running

from hmas.controller.admin.token import read_token
from hmas.controller.config.derived import ADMIN_TOKEN_FILE

CHECKS = (
    # No document names the status 500, so that one is a failure, too.
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)
OPTIONS = "--max-examples 5 --seed 1 --request-timeout 10"
METHODS = {"get", "post", "put", "delete"}


async def test_the_public_document_names_every_path_that_is_served(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        document = (await rig.get("/openapi.json")).json
        listed = (await rig.get("/nowhere")).error["message"].partition("paths: ")[2].split(", ")
    described = {path for path in document["paths"] if "{" not in path}
    assert described == set(listed)
    assert "/v1/models/{model}" in document["paths"]


async def test_the_admin_document_names_every_route(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        document = (await rig.admin("GET", "/openapi.json")).json
        for path, item in document["paths"].items():
            filled = re.sub(r"\{\w+\}", "nothing", path)
            answer = await rig.admin("PATCH", filled)
            assert answer.status == 405, path
            allowed = {method.lower() for method in answer.error["message"].partition("allowed: ")[2].split(", ")} - {"head"}
            # A fixed path may match another one with a parameter, too.
            alike = [other for name, other in document["paths"].items() if re.fullmatch(re.sub(r"\\?\{\w+\\?\}", "[^/]+", name), filled)]
            assert allowed == METHODS & {method for other in (item, *alike) for method in other}, path


@pytest.mark.slow
@pytest.mark.parametrize("port", ["public", "admin"])
@pytest.mark.parametrize("phase", ["coverage", pytest.param("fuzzing", marks=pytest.mark.long)])
async def test_what_the_documents_say_is_true(tmp_path: Path, port: str, phase: str) -> None:
    async with running(tmp_path) as rig:
        answer = await rig.get("/openapi.json") if port == "public" else await rig.admin("GET", "/openapi.json")
        schema = tmp_path / f"{port}.json"
        schema.write_text(json.dumps(_answerable(answer.json) if port == "public" else answer.json))
        url = rig.url if port == "public" else rig.admin_url
        headers = [] if port == "public" else [f"Authorization: Bearer {read_token(tmp_path / ADMIN_TOKEN_FILE)}"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", str(schema), "--url", url, "--checks", ",".join(CHECKS)),
            *("--phases", phase, *OPTIONS.split()),
            *(f"-H{one}" for one in headers),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), timeout=110)
    assert process.returncode == 0, output.decode()[-6000:]


def _answerable(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the model that is served here: with another one hardly any request would get beyond a 404."""
    text = json.dumps(document)
    assert '"minLength": 1, "maxLength": 256' in text
    text = text.replace('"minLength": 1, "maxLength": 256', '"enum": ["tiny", null]')
    loaded: dict[str, Any] = json.loads(text)
    return loaded
