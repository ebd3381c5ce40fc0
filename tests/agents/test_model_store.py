"""The store of models: what is added stays what it was, the choice changes in one step, and there is a way back."""

import multiprocessing
from pathlib import Path

import pytest

from hmas.agents.model_store.card import CARD, ModelCard, read_card, verified, write_card
from hmas.agents.model_store.store import KEPT, ModelStore
from hmas.controller.core.errors import ModelError


def trained(folder: Path, content: str = "weights") -> Path:
    (folder / "parts").mkdir(parents=True)
    (folder / "model.bin").write_text(content)
    (folder / "parts" / "vocabulary.json").write_text("{}")
    return folder


def card(**fields) -> ModelCard:
    return ModelCard(kind="perception", format="onnx", created_s=12.0, command="hmas train perception", licence="Apache-2.0", **fields)


@pytest.fixture
def store(tmp_path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def folder(tmp_path) -> Path:
    return trained(tmp_path / "trained")


def test_an_empty_store_has_the_shipped_model_in_force(store):
    assert store.current("perception") is None
    assert store.choice("perception").shadow == ""
    assert store.list("perception") == []
    assert store.stamp("perception") == (0, 0, 0)


def test_what_is_added_is_copied_whole_with_its_hashes_and_not_in_force_yet(store, folder):
    version = store.add("perception", folder, card(metrics={"accuracy": 0.95}))
    assert version == "v1"
    stored = store.folder("perception", "v1")
    assert (stored / "parts" / "vocabulary.json").read_text() == "{}"
    (found,) = store.list("perception")
    assert found.version == "v1"
    assert found.metrics == {"accuracy": 0.95}
    assert sorted(found.sha256) == ["model.bin", "parts/vocabulary.json"]
    assert store.current("perception") is None
    (folder / "model.bin").write_text("changed later")
    assert (stored / "model.bin").read_text() == "weights"


def test_use_changes_the_choice_and_its_stamp_and_rollback_goes_back_step_by_step(store, folder):
    for _ in range(2):
        store.add("perception", folder, card())
    stamps = [store.stamp("perception")]
    for version in ("v1", "v2"):
        store.use("perception", version)
        stamps.append(store.stamp("perception"))
        assert store.current("perception") == store.root / "perception" / version
    assert len(set(stamps)) == 3
    assert store.rollback("perception") == "v1"
    assert store.rollback("perception") == "shipped"
    assert store.current("perception") is None
    with pytest.raises(ModelError, match="no perception model was in force before shipped"):
        store.rollback("perception")


def test_the_shipped_model_can_be_chosen_and_left_again(store, folder):
    store.add("perception", folder, card())
    store.use("perception", "v1")
    store.use("perception", "shipped")
    assert store.current("perception") is None
    assert store.rollback("perception") == "v1"


def test_a_changed_file_is_refused_wherever_the_version_is_used(store, folder):
    store.add("perception", folder, card())
    store.use("perception", "v1")
    (store.folder("perception", "v1") / "model.bin").write_text("weightz")
    for attempt in (
        lambda: store.current("perception"),
        lambda: store.open("perception", "v1"),
        lambda: store.set_shadow("perception", "v1"),
    ):
        with pytest.raises(ModelError, match=r"model\.bin: sha256 .* the file was changed"):
            attempt()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "model.bin").unlink(), r"model\.bin: missing"),
        (lambda folder: (folder / "extra.txt").write_text("x"), r"extra\.txt: not listed"),
        (lambda folder: (folder / CARD).write_text("{"), r"card\.json: "),
        (lambda folder: (folder / CARD).unlink(), r"card\.json: No such file"),
        (lambda folder: (folder / "link").symlink_to("model.bin"), "a link"),
    ],
)
def test_damage_is_named(store, folder, damage, said):
    store.add("perception", folder, card())
    damage(store.folder("perception", "v1"))
    with pytest.raises(ModelError, match=said):
        store.use("perception", "v1")
    assert store.choice("perception").current == ""


def test_a_damaged_card_does_not_hide_the_other_versions(store, folder):
    for _ in range(2):
        store.add("perception", folder, card())
    (store.folder("perception", "v1") / CARD).write_text("{")
    broken, good = store.list("perception")
    assert broken.version == "v1"
    assert "card.json" in broken.details["broken"]
    assert good.format == "onnx"


def test_old_versions_make_room_but_never_the_one_in_force_its_shadow_or_the_way_back(store, folder):
    for _ in range(3):
        store.add("perception", folder, card())
    store.use("perception", "v1")
    store.use("perception", "v2")
    store.set_shadow("perception", "v3")
    for _ in range(KEPT + 4):
        newest = store.add("perception", folder, card())
    kept = [found.version for found in store.list("perception")]
    assert len(kept) == KEPT
    assert kept[:3] == ["v1", "v2", "v3"]
    assert kept[-1] == newest == f"v{KEPT + 7}"


def test_a_number_is_not_given_twice(store, folder):
    store.add("perception", folder, card())
    (store.root / "perception" / "v1").rename(store.root / "gone")
    assert store.add("perception", folder, card()) == "v2"


def test_the_shadow_ends_when_its_version_is_put_in_force(store, folder):
    store.add("perception", folder, card())
    store.set_shadow("perception", "v1")
    assert store.choice("perception").shadow == "v1"
    store.use("perception", "v1")
    assert store.choice("perception").shadow == ""
    with pytest.raises(ModelError, match="in force already"):
        store.set_shadow("perception", "v1")


def test_the_shadow_ends_when_a_rollback_puts_its_version_in_force(store, folder):
    for _ in range(3):
        store.add("perception", folder, card())
    for version in ("v1", "v2", "v3"):
        store.use("perception", version)
    store.set_shadow("perception", "v1")
    assert (store.rollback("perception"), store.choice("perception").shadow) == ("v2", "v1")
    assert (store.rollback("perception"), store.choice("perception").shadow) == ("v1", "")


def test_unknown_names_are_refused_with_those_that_exist(store, folder):
    store.add("perception", folder, card())
    with pytest.raises(ModelError, match=r"'taste' is unknown; allowed: perception, prediction"):
        store.list("taste")
    with pytest.raises(ModelError, match=r"'v9' is not in .*; there are: shipped, v1"):
        store.use("perception", "v9")
    with pytest.raises(ModelError, match="perception model '' is not in"):
        store.use("perception", "")
    with pytest.raises(ModelError, match=r"'\.\./v1' is not in"):
        store.use("perception", "../v1")
    with pytest.raises(ModelError, match=r"card.kind is 'perception'; allowed here: 'prediction'"):
        store.add("prediction", folder, card())


def test_a_folder_without_files_is_no_model_and_leaves_nothing_behind(store, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no files"):
        store.add("perception", tmp_path / "empty", card())
    assert [path.name for path in (store.root / "perception").iterdir()] == [".lock"]


def test_what_a_process_left_half_done_when_it_died_goes_with_the_next_one(store, folder):
    (store.root / "perception" / ".adding-dead").mkdir(parents=True)
    store.add("perception", folder, card())
    assert sorted(path.name for path in (store.root / "perception").iterdir()) == [".lock", "choice.json", "v1"]


def test_a_broken_choice_is_named_with_the_way_out(store, folder):
    store.add("perception", folder, card())
    (store.root / "perception" / "choice.json").write_text("nonsense")
    with pytest.raises(ModelError, match=r"choice\.json.*remove it"):
        store.current("perception")


def test_a_trainer_writes_its_own_card_and_what_it_says_survives_the_store(store, folder):
    write_card(folder, card(details={"temperature": 1.3}))
    store.add("perception", folder, read_card(folder))
    assert verified(store.folder("perception", "v1")).details == {"temperature": 1.3}


def _add(root: Path, folder: Path, times: int) -> None:
    for _ in range(times):
        ModelStore(root).add("perception", folder, card())


def test_processes_that_add_at_the_same_time_get_numbers_of_their_own(store, folder):
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_add, args=(store.root, folder, 3)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert [found.version for found in store.list("perception")] == [f"v{number}" for number in range(1, 7)]
