import hashlib

import msgspec
import pytest

from hmas.controller.core.errors import TraceError
from hmas.engines.model_shape import DATASETS_ENV, datasets_dir
from hmas.loadgen.dataset import load_mixture


def test_manifest_names_licence_source_and_hash_of_every_data_file():
    folder = datasets_dir()
    manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
    listed = {entry["path"]: entry for entry in manifest["files"]}
    present = {p.name for p in folder.iterdir() if p.suffix == ".json" and p.name != "manifest.json"}
    assert set(listed) == present
    for name, entry in listed.items():
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert entry["sha256"] == digest, f"{name}: the manifest should say {digest}"
        assert entry["licence"]
        assert entry["source"]


def write_mixture(tmp_path, **changes):
    for name in ("mixed.json", "prompts.json"):
        (tmp_path / name).write_bytes((datasets_dir() / name).read_bytes())
    document = msgspec.json.decode((tmp_path / "mixed.json").read_bytes())
    document["kinds"]["conv"].update(changes)
    (tmp_path / "mixed.json").write_bytes(msgspec.json.encode(document))
    return tmp_path / "mixed.json"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": 2.0}, r"kinds\[\.\.\.\]\.share"),
        ({"output_tokens": [[0, 10], [1, 5]]}, "conv.output_tokens: quantiles must rise"),
        ({"output_tokens": [[0.1, 1], [1, 5]]}, "conv.output_tokens: quantiles must rise"),
        ({"tasks": {"Poetry": {"weight": 1, "prompt_level": 0, "output_level": 0}}}, "Poetry"),
        ({"colour": "robust-edf"}, "unknown field `colour`"),
    ],
)
def test_a_bad_mixture_names_file_and_field(tmp_path, changes, message):
    path = write_mixture(tmp_path, **changes)
    with pytest.raises(TraceError, match=message) as caught:
        load_mixture(path)
    assert "mixed.json" in str(caught.value)


def test_missing_data_says_where_to_point(tmp_path, monkeypatch):
    monkeypatch.setenv(DATASETS_ENV, str(tmp_path))
    with pytest.raises(TraceError, match=DATASETS_ENV):
        load_mixture()
