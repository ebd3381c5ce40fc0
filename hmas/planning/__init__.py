"""Studies with the simulator: one run (`simulate`), a grid of runs (`sweep`), and capacity planning (`plan`)."""

from hmas.controller.core.errors import HmasError


class StudyError(HmasError):
    """A study cannot continue: a worker died, a package is missing, or the folder has results of another kind."""
