"""Checkpoints: exact, atomic, and refused by name when they are not whole or not ours."""

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.checkpoint_file import Checkpoint, CheckpointError


def example(step: int) -> Checkpoint:
    draw = np.random.default_rng(step)
    return Checkpoint({"h.0.weight": draw.standard_normal((3, 4)), "bias": np.zeros(0, np.float32)},
                      {"first_moment/bias": draw.standard_normal(2)}, {"step": step})


def test_what_is_saved_comes_back(tmp_path):
    path = files.save(tmp_path / "new" / "folder", example(1))
    for place in (path, path.parent, str(path)):
        loaded = files.load(place)
        assert loaded.description == {"step": 1}
        assert loaded.model.keys() == {"h.0.weight", "bias"}
        assert np.array_equal(loaded.model["h.0.weight"], example(1).model["h.0.weight"])
        assert loaded.model["bias"].dtype == np.float32
        assert loaded.optimizer.keys() == {"first_moment/bias"}
    assert '"step": 1' in (path.parent / "checkpoint.json").read_text()


def test_the_previous_one_is_kept(tmp_path):
    files.save(tmp_path, example(1))
    files.save(tmp_path, example(2))
    files.save(tmp_path, example(3))
    assert files.load(tmp_path).description["step"] == 3
    assert files.load(tmp_path / "checkpoint.previous.npz").description["step"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint.json", "checkpoint.npz", "checkpoint.previous.npz"]


def test_a_failure_while_writing_changes_nothing(tmp_path, monkeypatch):
    files.save(tmp_path, example(0))
    files.save(tmp_path, example(1))

    def half(file, **arrays):
        file.write(b"PK half a file")
        raise OSError("no space left on device")
    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(OSError, match="no space"):
        files.save(tmp_path, example(2))
    assert files.load(tmp_path).description["step"] == 1
    assert files.load(tmp_path / "checkpoint.previous.npz").description["step"] == 0
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("keep", [0, 10, 1000, -30, -1])
def test_a_truncated_file_is_refused_by_name(tmp_path, keep):
    files.save(tmp_path, example(1))
    path = files.save(tmp_path, example(2))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"checkpoint\.npz is truncated.*previous\.npz"):
        files.load(tmp_path)
    assert files.load(tmp_path / "checkpoint.previous.npz").description["step"] == 1


def test_a_flipped_byte_is_noticed(tmp_path):
    path = files.save(tmp_path, example(1))
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF                            # inside the first array
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        files.load(path)


def test_foreign_files_are_refused(tmp_path):
    text, archive, pickled = (tmp_path / n for n in ("a.txt", "b.npz", "c.npz"))
    text.write_text("hello")
    np.savez(archive, a=1)
    np.savez(pickled, description=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CheckpointError, match="File is not a zip file"):
        files.load(text)
    with pytest.raises(CheckpointError, match="was not written by this version"):
        files.load(archive)
    with pytest.raises(CheckpointError):
        files.load(pickled)                    # never unpickled
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        files.load(tmp_path / "nothing.npz")
