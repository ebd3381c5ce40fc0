"""The watched directory: files come, change, break, end and go."""

import json
import os
import threading

import pytest

from hmas.controller.config.override_directory import MAX_FILES, OverrideDirectory
from hmas.controller.control.overrides import Override, effective
from hmas.controller.core.errors import OverrideError

NOW_S = 4_000_000_000.0
"""Far ahead of any file's time stamp, so that stamps are trusted."""


def document(policy="edf", expires=None):
    return json.dumps({"version": 1, "author": "a", "reason": "r", "expires": expires, "policy": {"name": policy}})


@pytest.fixture
def watched(tmp_path):
    return OverrideDirectory(tmp_path)


def policies(result):
    return {override.id: override.policy for override in result.overrides}


def put(watched, name, text):
    (watched.path / name).write_text(text)


def test_a_directory_that_is_not_there_holds_nothing(tmp_path):
    result = OverrideDirectory(tmp_path / "none").scan(NOW_S)
    assert (result.overrides, result.errors) == ((), ())


def test_files_come_change_and_go(watched):
    put(watched, "b.json", document("edf"))
    put(watched, "a.json", document("sjf"))
    result = watched.scan(NOW_S)
    assert policies(result) == {"a": "sjf", "b": "edf"}
    assert [override.id for override in result.overrides] == ["a", "b"]

    put(watched, "b.json", document("wfq"))
    result = watched.scan(NOW_S)
    assert policies(result) == {"a": "sjf", "b": "wfq"}

    (watched.path / "a.json").unlink()
    result = watched.scan(NOW_S)
    assert policies(result) == {"b": "wfq"}


def test_an_expired_file_is_kept_and_has_no_effect(watched):
    put(watched, "a.json", document(expires="2096-10-02T07:06:45Z"))  # NOW_S + 5 s
    result = watched.scan(NOW_S + 5)
    assert effective(result.overrides, NOW_S + 5).policy == ""
    assert len(result.overrides) == 1


def test_a_half_written_file_keeps_the_last_good_version(watched):
    put(watched, "a.json", document("sjf"))
    watched.scan(NOW_S)
    whole = document("wfq")
    for length in range(len(whole)):
        put(watched, "a.json", whole[:length])
        result = watched.scan(NOW_S)
        assert policies(result) == {"a": "sjf"}
        assert [error.file for error in result.errors] == ["a.json"]
        assert "its last good version stays in force" in result.errors[0].message
    put(watched, "a.json", whole)
    result = watched.scan(NOW_S)
    assert (policies(result), result.errors) == ({"a": "wfq"}, ())


def test_a_file_that_was_never_good_holds_nothing(watched):
    put(watched, "a.json", '{"version": 1}')
    result = watched.scan(NOW_S)
    assert result.overrides == ()
    assert "a: $: the key `author` is missing" in result.errors[0].message
    assert "last good" not in result.errors[0].message
    assert watched.scan(NOW_S).errors == result.errors


def test_a_broken_file_lets_go_when_it_is_removed(watched):
    put(watched, "a.json", document())
    watched.scan(NOW_S)
    put(watched, "a.json", "{")
    watched.scan(NOW_S)
    (watched.path / "a.json").unlink()
    result = watched.scan(NOW_S)
    assert (result.overrides, result.errors) == ((), ())


def test_what_is_no_override_file_is_refused_or_left_alone(watched, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "real.json"
    outside.write_text(document())
    (watched.path / "link.json").symlink_to(outside)
    (watched.path / "dangling.json").symlink_to(watched.path / "none")
    (watched.path / "folder.json").mkdir()
    os.mkfifo(watched.path / "pipe.json")
    put(watched, "bad name.json", document())
    put(watched, "large.json", " " * (64 * 1024 + 1))
    put(watched, "README.md", "not looked at")
    put(watched, ".hidden.json", "not looked at")
    put(watched, ".a.1.tmp", "not looked at")
    result = watched.scan(NOW_S)
    assert result.overrides == ()
    said = {error.file: error.message for error in result.errors}
    assert set(said) == {"link.json", "dangling.json", "folder.json", "pipe.json", "bad name.json", "large.json"}
    assert "symbolic link" in said["link.json"]
    assert "symbolic link" in said["dangling.json"]
    assert "not a regular file" in said["folder.json"]
    assert "not a regular file" in said["pipe.json"]
    assert "override id" in said["bad name.json"]
    assert "65536 at most" in said["large.json"]


def test_there_is_a_limit_on_files(watched):
    for number in range(MAX_FILES + 3):
        put(watched, f"{number:04}.json", document())
    result = watched.scan(NOW_S)
    assert len(result.overrides) == MAX_FILES
    assert [error.file for error in result.errors] == ["0256.json", "0257.json", "0258.json"]


def test_a_full_directory_makes_room_of_what_has_expired(watched):
    for number in range(MAX_FILES):
        put(watched, f"{number:04}.json", document(expires=f"2026-01-{1 + number % 20:02}T00:00:00Z" if number >= 200 else None))
    assert len(watched.scan(NOW_S).overrides) == MAX_FILES
    watched.make_room("0100", NOW_S)
    assert len(list(watched.path.iterdir())) == MAX_FILES, "it is there already, and needs none"
    for number in range(MAX_FILES - 200):
        watched.make_room(f"new-{number:02}", NOW_S)
        watched.write(Override(id=f"new-{number:02}", author="a", reason="r", expires_s=None, policy="edf"))
        assert len(watched.scan(NOW_S).overrides) == MAX_FILES
        assert not (watched.path / "0200.json").exists(), "those that expired first"
    with pytest.raises(OverrideError, match="256 files that have not expired"):
        watched.make_room("one-more", NOW_S)


def test_an_unreadable_directory_keeps_what_was_held(tmp_path):
    watched = OverrideDirectory(tmp_path / "overrides")
    watched.path.mkdir()
    put(watched, "a.json", document())
    watched.scan(NOW_S)
    watched.path.rename(tmp_path / "aside")
    watched.path.symlink_to(watched.path)  # a loop: permissions would not stop root
    result = watched.scan(NOW_S)
    assert policies(result) == {"a": "edf"}
    assert "stays in force" in result.errors[0].message
    watched.path.unlink()
    (tmp_path / "aside").rename(watched.path)
    assert watched.scan(NOW_S).errors == ()


def test_an_unreadable_file_keeps_what_was_held(watched):
    put(watched, "a.json", document("sjf"))
    watched.scan(NOW_S)
    (watched.path / "a.json").unlink()
    (watched.path / "a.json").symlink_to("elsewhere")
    result = watched.scan(NOW_S)
    assert policies(result) == {"a": "sjf"}
    assert "symbolic link" in result.errors[0].message


def test_a_file_changed_twice_within_one_time_stamp_is_seen(watched):
    put(watched, "a.json", document("edf"))
    stamp_ns = (watched.path / "a.json").stat().st_mtime_ns
    now_s = stamp_ns / 1e9
    watched.scan(now_s)
    put(watched, "a.json", document("sjf"))
    os.utime(watched.path / "a.json", ns=(stamp_ns, stamp_ns))
    result = watched.scan(now_s + 0.1)
    assert policies(result) == {"a": "sjf"}


def test_write_and_remove(tmp_path):
    watched = OverrideDirectory(tmp_path / "made" / "here")
    override = Override(id="cli-policy", author="a", reason="r", expires_s=NOW_S + 60, policy="edf")
    path = watched.write(override)
    assert path.name == "cli-policy.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert watched.scan(NOW_S).overrides == (override,)
    assert [file.name for file in watched.path.iterdir()] == ["cli-policy.json"]
    assert watched.remove("cli-policy")
    assert not watched.remove("cli-policy")
    assert watched.scan(NOW_S).overrides == ()


@pytest.mark.parametrize("name", ["../x", "a/b", "", "x.json/../y"])
def test_ids_cannot_leave_the_directory(watched, name):
    with pytest.raises(OverrideError, match="override id"):
        watched.remove(name)
    with pytest.raises(OverrideError, match="override id"):
        watched.write(Override(id=name, author="a", reason="r", expires_s=None, policy="edf"))


def test_what_a_reader_would_refuse_is_not_written(watched):
    with pytest.raises(OverrideError, match="holds nothing"):
        watched.write(Override(id="a", author="a", reason="r", expires_s=None))
    with pytest.raises(OverrideError, match=r"\$\.policy\.name"):
        watched.write(Override(id="a", author="a", reason="r", expires_s=None, policy="lifo"))
    assert list(watched.path.iterdir()) == []


def test_a_directory_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    watched = OverrideDirectory(tmp_path / "file" / "below")
    with pytest.raises(OverrideError, match="must be writable"):
        watched.write(Override(id="a", author="a", reason="r", expires_s=None, policy="edf"))


def test_a_reader_never_sees_a_part(watched):
    """One thread rewrites a file of changing length, the other scans: every scan sees a whole version."""
    reasons = ["r" * length for length in (1, 400)]
    done = threading.Event()

    def rewrite():
        for turn in range(60):
            watched.write(Override(id="a", author="a", reason=reasons[turn % 2], expires_s=None, policy="edf"))
        done.set()

    watched.write(Override(id="a", author="a", reason=reasons[0], expires_s=None, policy="edf"))
    reader = OverrideDirectory(watched.path)
    writer = threading.Thread(target=rewrite)
    writer.start()
    scans = 0
    while not done.is_set() or scans == 0:
        result = reader.scan(0.0)
        assert result.errors == ()
        assert result.overrides[0].reason in reasons
        scans += 1
    writer.join()


def test_a_name_that_is_not_utf_8_is_told_as_text_that_can_be_sent(watched):
    (watched.path / os.fsdecode(b"bad\xff.json")).write_text(document())
    put(watched, "a.json", document())
    result = watched.scan(NOW_S)
    assert policies(result) == {"a": "edf"}
    (error,) = result.errors
    assert error.file == r"bad\udcff.json"
    assert error.message.encode()


def test_half_a_surrogate_pair_is_refused(watched):
    put(watched, "a.json", document().replace('"r"', r'"\ud83d"'))
    put(watched, "b.json", document().replace('"r"', r'"\ud83d\ude00"'))
    result = watched.scan(NOW_S)
    assert policies(result) == {"b": "edf"}
    (error,) = result.errors
    assert error.file == "a.json"
    assert "unpaired surrogate" in error.message
    assert error.message.encode()
    with pytest.raises(OverrideError, match="unpaired surrogate"):
        watched.write(Override(id="c", author="a", reason="\ud83d", expires_s=None, policy="edf"))


def test_a_number_larger_than_every_float_is_refused_and_stops_no_other(watched):
    text = json.dumps({"version": 1, "author": "a", "reason": "r", "expires": None, "tenants": {"t": {"weight": 10**400}}})
    put(watched, "a.json", text)
    put(watched, "b.json", document())
    result = watched.scan(NOW_S)
    assert policies(result) == {"b": "edf"}
    (error,) = result.errors
    assert error.file == "a.json"
    assert "$.tenants.t.weight: got 1000" in error.message
