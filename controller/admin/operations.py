"""The operations that the operators' API needs of a gateway. The gateway implements them, so this package does not import it."""

from typing import Any, Protocol

from hmas.controller.control.overrides import Override


class Operations(Protocol):
    """Everything that an operator can read and change. Documents are plain JSON values."""

    def status(self) -> dict[str, Any]:
        """The complete state of the gateway."""

    def policy(self) -> dict[str, Any]:
        """The active policy, its source, since when it is active, and the available policies."""

    def routers(self) -> dict[str, Any]:
        """The router of each model and its source, the rankings that failed, and the available routers and scorers."""

    def knobs(self) -> dict[str, Any]:
        """Active knobs by instance, each with its source."""

    def engines(self) -> list[dict[str, Any]]:
        """Every engine instance."""

    def events(self, limit: int) -> list[dict[str, Any]]:
        """The newest events, oldest first."""

    def decisions(self, limit: int, *, changes: bool) -> list[dict[str, Any]]:
        """Meta's newest decisions with their outcomes, oldest first; with `changes` only those that changed a setting."""

    def decision(self, decision_id: str) -> dict[str, Any]:
        """One decision, by its id or a unique ending of the id.

        Raises:
            AdminError: The decision is unknown or no longer kept.
        """

    def request(self, request_id: str) -> dict[str, Any]:
        """The trace of one request, by the gateway's id or the client's own.

        Raises:
            AdminError: The request is unknown or no longer kept; the error says how long requests are kept.
        """

    def overrides(self) -> dict[str, Any]:
        """Active overrides, refused files, and settings on which overrides disagree."""

    async def views(self) -> dict[str, Any]:
        """The newest views of qos, `short` and `long`, each with its `age_s` but without single requests; None if there is none."""

    def instance_names(self) -> list[str]:
        """Names of all configured instances."""

    def check_override(self, override: Override) -> None:
        """Checks whether the override could be applied here.

        Raises:
            OverrideError: It could not; the error names every wrong JSON path.
        """

    async def put_override(self, override: Override) -> None:
        """Writes an override to the directory and applies it before it returns.

        Raises:
            OverrideError: As `check_override`, or the directory cannot be written.
        """

    async def remove_override(self, override_id: str) -> bool:
        """Removes one override. Returns False if there is none with this id.

        Raises:
            OverrideError: The id is malformed, or the file cannot be removed.
        """
