"""Submissions as students hand them in: odd files, broken archives, and small ones that unpack."""

import gzip
import tarfile
import zipfile

import pytest

from minipar.course.grading.submission import MAX_FILE, MAX_FILES, MAX_TAR, read_submission
from minipar.course.grading.tasks import CourseError


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
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda self, entry: reads.append(entry) or b"")
    found = read_submission(tmp_path / "many.zip")
    assert len(reads) == len(found.files) == MAX_FILES
    assert found.problems[-1] == "and 10 more"
    with gzip.open(tmp_path / "zeros.tar.gz", "wb") as file:
        file.write(bytes(MAX_TAR + 1))
    with pytest.raises(CourseError, match="bytes, unpacked: hand in the .py files alone"):
        read_submission(tmp_path / "zeros.tar.gz")


def test_a_broken_archive_is_told(tmp_path):
    with zipfile.ZipFile(tmp_path / "it.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.py", "x = 1\n" * 100)
    data = bytearray((tmp_path / "it.zip").read_bytes())
    data[36:50] = bytes(byte ^ 0xFF for byte in data[36:50])           # in the packed file
    (tmp_path / "it.zip").write_bytes(data)
    with pytest.raises(CourseError, match="cannot be read .*: hand it in again"):
        read_submission(tmp_path / "it.zip")
