"""Identifies clients: maps API keys to tenants, and checks what a tenant may claim."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hmas.controller.config.section import TenantConfig
from hmas.controller.gateway.errors import ApiError, bad_field

FAIRNESS_HEADERS = ("x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id")
DEFAULT_TENANT = "default"
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LABEL_ALLOWED = "letters, digits, dot, underscore and hyphen, 64 at most"
MAX_ANONYMOUS_TENANTS = 1000


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a client. `flow` is its own label inside its tenant; it grants nothing."""

    tenant: str
    limits: TenantConfig
    flow: str = ""


class Authenticator:
    """Maps an API key to a tenant by the key's SHA-256. The key is in `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`; the
    first of these headers that is there counts.

    Without authentication the fairness header, or `default`, names the tenant. Names that are not configured get the default limits; their
    number is bounded, and any further ones share the default tenant.
    """

    def __init__(self, tenants: Mapping[str, TenantConfig], *, no_auth: bool) -> None:
        self._no_auth = no_auth
        self._anonymous: set[str] = set()
        self.reload(tenants)

    def reload(self, tenants: Mapping[str, TenantConfig]) -> None:
        """Replaces tenants and keys; earlier requests keep their identity."""
        self._tenants = dict(tenants)
        # The timing of a dict lookup by hash leaks nothing useful: an attacker cannot steer SHA-256's output towards a stored hash.
        self._by_hash = {digest: name for name, tenant in tenants.items() for digest in tenant.key_sha256}
        self._plain = {name: Identity(name, limits) for name, limits in tenants.items()}

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """The identity of the client that sent these headers.

        Raises:
            ApiError: 401 without a key or with an unknown one, 403 if the fairness header names another configured tenant, 400 if it is
                malformed.
        """
        flow = _flow(headers)
        if self._no_auth:
            return self._anonymous_identity(flow)
        tenant = self._tenant_of_key(_key(headers))
        if not flow:
            return self._plain[tenant]
        if flow != tenant and flow in self._tenants:
            raise ApiError(
                403,
                "tenant_mismatch",
                f"this API key belongs to tenant {tenant!r}, but the fairness header claims tenant {flow!r}; use that tenant's key",
                param=FAIRNESS_HEADERS[0],
            )
        return Identity(tenant, self._tenants[tenant], flow)

    def _tenant_of_key(self, key: str) -> str:
        if not key:
            text = "no API key: send the header `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`"
            raise ApiError(401, "missing_api_key", text, headers=CHALLENGE)
        tenant = self._by_hash.get(hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest())
        if tenant is None:
            raise ApiError(401, "invalid_api_key", "this API key is not known here; ask the operator for one", headers=CHALLENGE)
        return tenant

    def _anonymous_identity(self, flow: str) -> Identity:
        tenant = flow or DEFAULT_TENANT
        limits = self._tenants.get(tenant)
        if limits is not None:
            return Identity(tenant, limits, flow)
        if tenant not in self._anonymous:
            if len(self._anonymous) >= MAX_ANONYMOUS_TENANTS:
                tenant = DEFAULT_TENANT
            self._anonymous.add(tenant)
        return Identity(tenant, self._tenants.get(tenant, UNLISTED), flow)


CHALLENGE = {"www-authenticate": "Bearer"}
UNLISTED = TenantConfig()


def _key(headers: Mapping[str, str]) -> str:
    """The API key that the client sent, empty if it sent none."""
    authorization = headers.get("authorization")
    if authorization is None:
        return (headers.get("x-api-key") or headers.get("api-key") or "").strip()
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _flow(headers: Mapping[str, str]) -> str:
    for name in FAIRNESS_HEADERS:
        value = headers.get(name)
        if value:
            if not LABEL.fullmatch(value):
                raise bad_field(name, value, LABEL_ALLOWED)
            return value
    return ""
