"""What the operators' API asks of a gateway. The gateway implements it, so that this room never imports that one."""

from typing import Any, Protocol

from hmas.controller.control.overrides import Override


class Operations(Protocol):
    """Everything an operator can see and do. Documents are plain JSON values."""

    def status(self) -> dict[str, Any]:
        """The whole state on one page."""
        ...

    def policy(self) -> dict[str, Any]:
        """The policy in force, whose word it is, since when, and the policies there are."""
        ...

    def knobs(self) -> dict[str, Any]:
        """Controls in force by instance, each with its source."""
        ...

    def engines(self) -> list[dict[str, Any]]:
        """Every engine instance."""
        ...

    def events(self, limit: int) -> list[dict[str, Any]]:
        """The newest events, oldest of them first."""
        ...

    def decisions(self, limit: int, *, changes: bool) -> list[dict[str, Any]]:
        """Meta's newest decisions with their outcomes, oldest of them first; with `changes` only those that changed something."""
        ...

    def decision(self, decision_id: str) -> dict[str, Any]:
        """One decision, by its id or the unique end of it.

        Raises:
            AdminError: It is not known, or not any more.
        """
        ...

    def request(self, request_id: str) -> dict[str, Any]:
        """The story of one request, by the gateway's id or the client's own.

        Raises:
            AdminError: It is not known, or not any more; says how long requests are.
        """
        ...

    def overrides(self) -> dict[str, Any]:
        """Overrides in force, files that are refused, and settings on which overrides disagree."""
        ...

    def instance_names(self) -> list[str]:
        """Names of all configured instances."""
        ...

    def check_override(self, override: Override) -> None:
        """Whether the override could be applied here.

        Raises:
            OverrideError: It could not; names every JSON path at fault.
        """
        ...

    async def put_override(self, override: Override) -> None:
        """Writes an override to the directory and applies it before it returns.

        Raises:
            OverrideError: As `check_override`, or the directory cannot be written.
        """
        ...

    async def remove_override(self, override_id: str) -> bool:
        """Releases one override. False where there is none of this id.

        Raises:
            OverrideError: The id is malformed, or the file cannot be removed.
        """
        ...
