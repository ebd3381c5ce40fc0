"""What can go wrong with a study as such."""

from hmas.controller.core.errors import HmasError


class StudyError(HmasError):
    """A study that cannot go on: a worker died, a package is missing, results of another making lie in the folder."""
