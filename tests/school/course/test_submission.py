"""Submissions as students hand them in: odd names, broken archives, small ones that unpack."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import tracemalloc
import unicodedata
import zipfile
from types import SimpleNamespace

import pytest

from minipar.school.course.grading.readers import MAX_FILE, MAX_TAR
from minipar.school.course.grading.submission import (
    MAX_FILES,
    MAX_SOURCES,
    find_tasks,
    read_submission,
)
from minipar.school.toml_files import SchoolError


def test_submissions_are_read_and_not_followed(tmp_path):
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "big.py").write_text("#" * (MAX_FILE + 1))
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    (tmp_path / "latin.py").write_bytes("é".encode("latin1"))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_text("2")
    (tmp_path / "not-a-name.py").write_text("3")
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfx = 1")           # as some editors write it
    (tmp_path / ".venv/lib").mkdir(parents=True)
    (tmp_path / ".venv/lib/b.py").write_text("4")
    found = read_submission(tmp_path)
    assert found.files == {"a": "1", "bom": "x = 1"} and len(found.problems) == 3
    with tarfile.open(tmp_path / "as-typed.tgz", "w:gz") as archive:
        archive.add(tmp_path / "a.py", "./a.py")
    assert read_submission(tmp_path / "as-typed.tgz").files == {"a": "1"}


def test_an_archive_is_not_unpacked_without_limit(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "many.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(MAX_FILES + 20):
            archive.writestr(f"a{number}.py", "#")
    reads = []
    monkeypatch.setattr(zipfile.ZipFile, "open",
                        lambda self, entry: reads.append(entry) or io.BytesIO())
    found = read_submission(tmp_path / "many.zip")
    assert len(reads) == len(found.files) == MAX_FILES
    assert found.problems[-1] == "and 10 more"
    with gzip.open(tmp_path / "zeros.tar.gz", "wb") as file:
        file.write(bytes(MAX_TAR + 1))
    with pytest.raises(SchoolError, match="bytes, unpacked: hand in the .py files alone"):
        read_submission(tmp_path / "zeros.tar.gz")


def test_all_files_fit_a_frame_with_those_wanted_first(tmp_path):
    for name in "abcz":
        (tmp_path / f"{name}.py").write_text("#" * (MAX_SOURCES // 2 - 2 if name != "b" else 9))
    found = read_submission(tmp_path, ["z"])
    assert set(found.files) == {"a", "z"}
    assert found.problems[0] == f"b.py is left out: all files may have {MAX_SOURCES:,} bytes"


def test_what_is_no_plain_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.py")                            # to read it would wait for ever
    (tmp_path / "b.py").symlink_to("/dev/zero")
    problems = read_submission(tmp_path).problems
    assert [problem.partition(",")[0] for problem in problems] == [
        "a.py is no plain file", "b.py is no plain file"]


def test_a_name_is_one_line_and_commands_no_terminal(tmp_path):
    folder = tmp_path / "x\x1b[2J\nhonest: 107 of 107 points"
    folder.mkdir()
    assert read_submission(folder).name == "x[2J honest: 107 of 107 points"


def test_wanted_modules_are_read_before_many_others(tmp_path):
    for name in (*(f"a{number}" for number in range(MAX_FILES + 5)), "z"):
        (tmp_path / f"{name}.py").write_text("")
    assert "z" not in read_submission(tmp_path).files
    found = read_submission(tmp_path, ["z"])
    assert "z" in found.files and len(found.files) == MAX_FILES


def test_a_broken_archive_is_told(tmp_path):
    with zipfile.ZipFile(tmp_path / "it.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.py", "x = 1\n" * 100)
    data = bytearray((tmp_path / "it.zip").read_bytes())
    data[36:50] = bytes(byte ^ 0xFF for byte in data[36:50])           # in the packed file
    (tmp_path / "it.zip").write_bytes(data)
    with pytest.raises(SchoolError, match="cannot be read .*: hand it in again"):
        read_submission(tmp_path / "it.zip")


def test_a_size_that_lies_is_not_believed(tmp_path):
    """An entry that says 100 bytes, and unpacks to 64 MB."""
    place = tmp_path / "lies.zip"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.py", bytes(64 * MAX_FILE))
    size, lie = (64 * MAX_FILE).to_bytes(4, "little"), (100).to_bytes(4, "little")
    place.write_bytes(place.read_bytes().replace(size, lie))
    tracemalloc.start()
    with pytest.raises(SchoolError, match="cannot be read .*Bad CRC"):
        read_submission(place)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MAX_FILE


@pytest.mark.parametrize("name, opened", [
    ("a.TGZ", gzip.open), ("a.tar.xz", lzma.open), ("a.txz", lzma.open), ("a.tar.bz2", bz2.open),
    ("a.TAR", open), ("really-a-tar.zip", gzip.open)])
def test_archives_are_known_by_their_content(tmp_path, name, opened):
    with opened(tmp_path / name, "wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("final/a.py")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"1"))
    assert read_submission(tmp_path / name).files == {"a": "1"}


@pytest.mark.parametrize("name, content, message", [
    ("a.zip", b"", "is neither a zip nor a tar archive, or it is broken: hand it in again"),
    ("a.zip", b"<!DOCTYPE html>", "is neither a zip nor a tar archive"),
    ("a.zip", b"PK\x03\x04", "cannot be read .*: hand it in again"),
    ("a.tar.xz", b"\xfd7zXZ", "cannot be read .*: hand it in again"),
    ("a.7z", b"7z", "is no submission: give a folder, a .py file, or one of .zip"),
    ("a.rar", b"Rar!", "is no submission"), ("a.ipynb", b"{}", "is no submission"),
    ("a", b"x = 1", "is no submission"),
])
def test_what_cannot_be_read_is_told(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SchoolError, match=message):
        read_submission(tmp_path / name)


@pytest.mark.parametrize("method, flag", [(zipfile.ZIP_DEFLATED, 1), (zipfile.ZIP_LZMA, 0)])
def test_a_zip_with_a_password_or_an_unusual_method_is_refused(tmp_path, method, flag):
    place = tmp_path / "a.zip"
    with zipfile.ZipFile(place, "w", method) as archive:
        archive.writestr("a.py", "x = 1")
    data = bytearray(place.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= flag
    place.write_bytes(data)
    with pytest.raises(SchoolError, match="needs a password, or is packed in an unusual way"):
        read_submission(place)


def test_the_one_archive_of_a_folder_is_read(tmp_path):
    """As Moodle unpacks: a folder for each student, with the file that was handed in."""
    with zipfile.ZipFile(tmp_path / "submission.zip", "w") as archive:
        archive.writestr("a.py", "1")
    (tmp_path / "notes.txt").write_text("done")
    assert read_submission(tmp_path).files == {"a": "1"}
    (tmp_path / "b.py").write_text("2")
    assert read_submission(tmp_path).files == {"b": "2"}, "files of the folder come first"
    (tmp_path / "b.py").unlink()
    (tmp_path / "submission.zip").write_bytes(b"")
    [told] = read_submission(tmp_path).problems
    assert "is neither a zip nor a tar archive" in told


def test_names_of_a_mac_and_of_windows(tmp_path):
    name = unicodedata.normalize("NFD", "über.py")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(f"mine\\{name}", "1")
        archive.writestr("mine\\", "")
        archive.writestr(f"__MACOSX/mine/._{name}", b"\0\5\x16\7")
        archive.writestr("../up.py", "2")
    assert read_submission(tmp_path / "a.zip").files == {"über": "1", "up": "2"}


@pytest.mark.parametrize("name", [
    "__MACOSX", "__pycache__", "venv", ".venv", "env", ".git", ".idea", ".vscode", "node_modules",
    ".ipynb_checkpoints"])
def test_litter_in_a_submission_is_no_part_of_it(tmp_path, name):
    (tmp_path / name / "deep").mkdir(parents=True)
    (tmp_path / name / "deep/split_rows.py").write_text("def split_rows(): pass")
    (tmp_path / "Thumbs.db").write_text("")
    found = find(read_submission(tmp_path), "split_rows")
    assert found.problems == ("there is no split_rows.py; other files: none",)


@pytest.mark.parametrize("data", [
    "# é\n".encode("latin1"), "# é\n".encode("utf-16"), "#\n".encode("utf-16-le")])
def test_other_encodings_are_told(tmp_path, data):
    (tmp_path / "split_rows.py").write_bytes(data)
    told = find(read_submission(tmp_path), "split_rows").problems
    assert told[0] == "split_rows.py is not text in UTF-8: save it as UTF-8"


def find(submission, *names):
    return find_tasks(submission, [SimpleNamespace(name=name, function=name) for name in names])


@pytest.mark.parametrize("name", [
    "split_rows (2).py", "Split_Rows.py", "SPLIT_ROWS.PY", "split-rows.py", "split_rows.py.txt",
    "1_split_rows.py", "split rows.py", "split_rows .py", "split_rows.py ", "split_rows.py.",
    "split_rows.py (1)", "smith_123_456_split_rows-1.py", "final\\split-rows.py", "solution.py",
    "split_rows - Copy.py", "splitrows.Py"])
def test_a_task_is_found_under_another_name(tmp_path, name):
    text = "import numpy as np\r\n\r\ndef split_rows(a):\r\n    return a\r\n"
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / name).write_text(text, newline="")
    (tmp_path / "helpers.py").write_text("def help_split_rows(a): pass")
    found = find(read_submission(tmp_path), "split_rows")
    assert found.files["split_rows"] == text
    [told] = found.problems
    assert told.startswith("there is no split_rows.py: ") and "was graded" in told
    assert found.digest != read_submission(tmp_path).digest, "the seeds depend on it"


def test_of_two_versions_none_is_guessed(tmp_path):
    for number in (1, 2):
        (tmp_path / f"a ({number}).py").write_text("def a(): pass")
    assert find(read_submission(tmp_path), "a").files == {"a": "def a(): pass"}, "a copy"
    (tmp_path / "a (2).py").write_text("def a(): return 2")
    found = find(read_submission(tmp_path), "a", "b")
    assert not found.files and found.problems == (
        "there is no a.py, and a differs between a (1).py, a (2).py: hand in one",
        "there is no b.py; other files: a (1).py, a (2).py")


def test_another_version_beside_the_graded_one_is_told(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "a.py").write_text("def a(): raise NotImplementedError")
    (tmp_path / "old/a.py").write_text("def a(): return 1")
    (tmp_path / "a2.py").write_text("def a(): raise NotImplementedError")
    found = find(read_submission(tmp_path), "a")
    assert found.files["a"] == "def a(): raise NotImplementedError"
    assert found.problems == ("a.py was graded, not the other a in old/a.py",)
    (tmp_path / "a.py").write_text("from a2 import a")
    assert not find(read_submission(tmp_path), "a").problems, "a helper defines it"


def test_one_file_may_have_all_tasks(tmp_path):
    (tmp_path / "all.py").write_text("def a(): pass\ndef b(): pass\n")
    (tmp_path / "notes.txt").write_text("def c(): pass")
    found = find(read_submission(tmp_path), "a", "b", "c")
    assert found.files["a"] == found.files["b"] == found.files["all"]
    assert found.problems[-1] == "there is no c.py; other files: all.py, notes.txt"
