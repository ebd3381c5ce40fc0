"""A client of the operators' API, for the CLI and for scripts. It is synchronous and uses only the standard library."""

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from hmas.controller.admin.token import read_token
from hmas.controller.core.errors import AdminError, AdminUnreachable, ConfigError

TIMEOUT_S = 10.0


class AdminClient:
    """A client of one gateway's operators' API.

    Every method returns the parsed answer, and raises `AdminError` if the gateway refuses or is not reachable, and `ConfigError` for an
    empty name; the error says what to do.

    Attributes:
        url, host: The gateway's address, and the host in it.
        token_file: See `__init__`.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8081",
        *,
        token: str = "",
        token_file: Path | Callable[[], Path] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Stores the gateway's address; does not connect yet.

        Args:
            url: The address.
            token: The operators' token.
            token_file: Where the gateway keeps its token, if it runs on this machine, or a function that finds out. Without a `token` it is
                read at each call that reaches the gateway.
            timeout_s: How long an answer may take.

        Raises:
            ConfigError: `url` is not an http address.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"admin address {url!r}: {error}; allowed: http://HOST:PORT with a port from 0 to 65535") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"admin address {url!r}; allowed: http://HOST:PORT")
        self.url = url.rstrip("/")
        self._https = parts.scheme == "https"
        self.host = parts.hostname
        self._port = port or (443 if self._https else 80)
        self._token = token
        self.token_file = token_file
        self._timeout_s = timeout_s

    def status(self) -> dict[str, Any]:
        """The complete state of the gateway."""
        return self._call("GET", "/admin/status")

    def policy(self) -> dict[str, Any]:
        """The active policy and its source."""
        return self._call("GET", "/admin/policy")

    def force_policy(
        self, policy: str, *, parameters: dict[str, float] | None = None, for_s: float | None = None, author: str = "", reason: str = ""
    ) -> dict[str, Any]:
        """Forces a policy, for `for_s` seconds or without a time limit."""
        return self._call("POST", "/admin/policy", _forced(for_s, author, reason, policy=policy, parameters=parameters or {}))

    def release_policy(self) -> dict[str, Any]:
        """Returns the policy to the agents; `released` says whether it had been forced."""
        return self._call("DELETE", "/admin/policy")

    def routers(self) -> dict[str, Any]:
        """The router of each model, and the available ones."""
        return self._call("GET", "/admin/routers")

    def force_router(
        self,
        router: str,
        *,
        model: str = "*",
        weights: dict[str, float] | None = None,
        for_s: float | None = None,
        author: str = "",
        reason: str = "",
    ) -> dict[str, Any]:
        """Forces the router of a model, or of all (`*`)."""
        body = _forced(for_s, author, reason, router=router, model=model, weights=weights or {})
        return self._call("POST", "/admin/routers", body)

    def release_router(self, model: str = "*") -> dict[str, Any]:
        """Returns to the configured router where one was forced under this name."""
        return self._call("DELETE", "/admin/routers?" + urlencode({"model": model}))

    def knobs(self) -> dict[str, Any]:
        """Active knobs, by instance."""
        return self._call("GET", "/admin/knobs")

    def force_knobs(
        self,
        instance: str = "*",
        *,
        n_run: int | None = None,
        token_budget: int | None = None,
        for_s: float | None = None,
        author: str = "",
        reason: str = "",
    ) -> dict[str, Any]:
        """Forces knobs of one instance, or of all (`*`)."""
        body = _forced(for_s, author, reason, instance=instance, n_run=n_run, token_budget=token_budget)
        return self._call("POST", "/admin/knobs", body)

    def release_knobs(self, instance: str = "*") -> dict[str, Any]:
        """Returns the knobs that were forced under this name to the agents."""
        return self._call("DELETE", "/admin/knobs?" + urlencode({"instance": instance}))

    def overrides(self) -> dict[str, Any]:
        """Active overrides, refused files and conflicts."""
        return self._call("GET", "/admin/overrides")

    def put_override(self, override_id: str, document: dict[str, Any]) -> dict[str, Any]:
        """Activates an override document under an id."""
        return self._call("POST", "/admin/overrides?" + urlencode({"id": override_id}), document)

    def validate_override(self, override_id: str, document: dict[str, Any]) -> dict[str, Any]:
        """Checks a document against this gateway and changes nothing."""
        return self._call("POST", "/admin/overrides/validate?" + urlencode({"id": override_id}), document)

    def remove_override(self, override_id: str) -> dict[str, Any]:
        """Releases one override."""
        return self._call("DELETE", "/admin/overrides/" + _part(override_id))

    def clear_overrides(self) -> dict[str, Any]:
        """Releases every override."""
        return self._call("DELETE", "/admin/overrides")

    def engines(self) -> list[dict[str, Any]]:
        """Every engine instance."""
        engines: list[dict[str, Any]] = self._call("GET", "/admin/engines")["engines"]
        return engines

    def drain_engine(self, name: str, *, for_s: float | None = None, author: str = "", reason: str = "") -> list[dict[str, Any]]:
        """Stops sending new requests to an engine; its running requests continue."""
        path = f"/admin/engines/{_part(name)}/drain"
        engines: list[dict[str, Any]] = self._call("POST", path, _forced(for_s, author, reason))["engines"]
        return engines

    def undrain_engine(self, name: str) -> dict[str, Any]:
        """Lets an engine receive requests again; `released` says whether it had been drained through this API."""
        return self._call("POST", f"/admin/engines/{_part(name)}/undrain")

    def views(self) -> dict[str, Any]:
        """The newest short and long view of qos."""
        return self._call("GET", "/admin/views")

    def events(self, limit: int = 100) -> list[dict[str, Any]]:
        """The newest events, oldest first."""
        events: list[dict[str, Any]] = self._call("GET", "/admin/events?" + urlencode({"limit": limit}))["events"]
        return events

    def decisions(self, limit: int = 100, *, changes: bool = False) -> list[dict[str, Any]]:
        """Meta's newest decisions, oldest first; with `changes` only those that changed a setting."""
        query = urlencode({"limit": limit, "changes": int(changes)})
        decisions: list[dict[str, Any]] = self._call("GET", f"/admin/decisions?{query}")["decisions"]
        return decisions

    def decision(self, decision_id: str) -> dict[str, Any]:
        """One decision: inputs, candidates, their expected results, and the outcome."""
        return self._call("GET", "/admin/decisions/" + _part(decision_id))

    def request(self, request_id: str) -> dict[str, Any]:
        """The trace of one request."""
        return self._call("GET", "/admin/requests/" + _part(request_id))

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        status, data = self._exchange(method, path, None if body is None else json.dumps(body, ensure_ascii=False).encode())
        try:
            document = json.loads(data)
        except ValueError:
            raise AdminError(f"{self.url} answered {status} with something that is no JSON; is this the admin port of a gateway?") from None
        if status >= 400 or not isinstance(document, dict):
            raise AdminError(self._refusal(status, document), status)
        return document

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self.host, self._port, timeout=self._timeout_s)
        headers = {"accept": "application/json"}
        if method == "POST":
            headers["content-type"] = "application/json"
        try:
            connection.connect()
            if token := self._token or self._kept_token():
                headers["authorization"] = f"Bearer {token}"
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        except ConnectionRefusedError:
            raise AdminUnreachable(f"no gateway listens at {self.url}; start one with `hmas up`, or name its admin address") from None
        except TimeoutError:
            raise AdminUnreachable(f"the gateway at {self.url} did not answer within {self._timeout_s:g} s; see its log") from None
        except ValueError:  # its text has the token
            raise AdminError("the operators' token cannot be sent; allowed: one line of Latin-1 characters") from None
        except (OSError, http.client.HTTPException) as error:
            raise AdminUnreachable(f"cannot reach the gateway at {self.url}: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()

    def _kept_token(self) -> str:
        path = self._token_path()
        return "" if path is None else read_token(path)

    def _token_path(self) -> Path | None:
        return self.token_file() if callable(self.token_file) else self.token_file

    def _refusal(self, status: int, document: Any) -> str:
        error = document.get("error") if isinstance(document, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        if status == 401:
            do = "set HMAS_ADMIN_TOKEN, or run this as the gateway's user and with the configuration that names its state_dir"
            if not self._token and (path := self._token_path()) is not None:
                message = f"{path} has none, or another one"
            return f"the gateway at {self.url} requires the operators' token: {message}; {do}"
        if isinstance(error, dict) and error.get("code") == "unknown_path":
            return f"{str(message).partition(';')[0]}; is {self.url} the admin port of a gateway?"
        return str(message or f"the gateway at {self.url} answered {status}")


def _part(name: str) -> str:
    """A name as one part of a path; without one the path would be another."""
    if not name:
        raise ConfigError("a name is empty; allowed: the name or id of what is asked about")
    return quote(name, safe="")


def _forced(for_s: float | None, author: str, reason: str, **fields: Any) -> dict[str, Any]:
    """The body of a request that forces a setting; fields that are not given are left out."""
    body = {name: value for name, value in fields.items() if value is not None}
    body.update({name: value for name, value in (("for_s", for_s), ("author", author), ("reason", reason)) if value})
    return body
