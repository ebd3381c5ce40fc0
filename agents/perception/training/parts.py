"""Rows by what they are for: training, validation, test. Pure but for the files; the same for everyone who judges or trains."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from hmas.agents.perception.training.data import LENGTH_FILES, Row, read_rows, with_lengths
from hmas.agents.perception.training.split import split

SPLIT_SEED = 0


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by what they are for.

    Training and validation hold only what may be trained on; the test holds everything, so that it is as hard as the data.
    """

    train: list[Row]
    validation: list[Row]
    test: list[Row]


def load(paths: Sequence[Path]) -> list[Row]:
    """The rows of the files, with output lengths of many models where those files lie beside them.

    Raises:
        ModelError: As `read_rows` does.
    """
    rows = read_rows(paths)
    for path in paths:
        prompts, lengths = (path.parent / Path(name).name for name in LENGTH_FILES)
        if prompts.is_file() and lengths.is_file():
            rows = with_lengths(rows, prompts, lengths)
    return rows


def parts_of(rows: Sequence[Row], *, without: Sequence[str] = ()) -> Parts:
    """Splits rows by groups of twins; see `hmas.agents.perception.training.split`.

    Args:
        rows: Labelled rows.
        without: Parts of source names. Rows of such sources are in no training and no validation part: what is told of them then is how
            the model does on sources that it has never seen.
    """
    indices = split(rows, SPLIT_SEED)

    def usable(part: str) -> list[Row]:
        chosen = [rows[index] for index in indices[part]]
        return [row for row in chosen if row.licence is not None and not any(name in row.source for name in without)]

    return Parts(train=usable("train"), validation=usable("validation"), test=[rows[index] for index in indices["test"]])
