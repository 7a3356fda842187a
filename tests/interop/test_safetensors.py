"""safetensors: what is written is read; every other file is refused in one line naming the key."""

import json
import re

import numpy as np
import pytest

from minipar.interop import InteropError, open_safetensors, write_safetensors
from minipar.interop.safetensors import INDEX, SafeTensors
from minipar.interop.safetensors_writer import model_files
from minipar.number_formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]


def file_of(path, header, data=b"", claimed=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if claimed is None else claimed).to_bytes(8, "little")
                     + text + data)
    return path


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_is_read(tmp_path, dtype):
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(0, 2, shape).astype(dtype)
              for name, shape in (("ä", (3, 5)), ("none", (0, 4)), ("one", ()), ("row", (7,)))}
    path = write_safetensors(tmp_path / "x.safetensors", arrays, metadata={"who": "a test"})
    found = open_safetensors(path)
    assert dict(found.metadata) == {"who": "a test"} and set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert np.array_equal(found[name], array)


def test_arrays_of_several_dtypes_are_aligned(tmp_path):
    arrays = {"a": np.ones(3, np.uint8), "b": np.arange(2.0), "c": np.ones(5, np.float16)}
    found = open_safetensors(write_safetensors(tmp_path / "x", arrays))
    assert [found.entries[name].begin % array.itemsize for name, array in arrays.items()] == [0] * 3
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("turned", [
    lambda a: a.T, lambda a: np.asfortranarray(a), lambda a: a[::-1, ::2],
    lambda a: a.astype(">f8"), lambda a: np.broadcast_to(a[:1], (3, 4))])
def test_the_order_in_memory_does_not_matter(tmp_path, turned):
    array = turned(np.arange(12.0).reshape(3, 4))
    found = open_safetensors(write_safetensors(tmp_path / "x", {"a": array}))["a"]
    assert found.shape == array.shape and np.array_equal(found, array)


@pytest.mark.parametrize("dtype, rounded", [
    ("BF16", BFLOAT16.round), ("F8_E4M3", FLOAT8_E4M3FN.round), ("F8_E5M2", FLOAT8_E5M2.round),
    ("F16", lambda x: x.astype("f2")), ("F32", lambda x: x), ("F64", lambda x: x)])
def test_narrow_floats(tmp_path, dtype, rounded):
    array = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    arrays = {"a": array.T, "ids": np.arange(3)}
    found = open_safetensors(write_safetensors(tmp_path / "x", arrays, dtype))
    assert found.entries["a"].dtype == dtype and found.entries["ids"].dtype == "I64"
    assert np.array_equal(found["a"], rounded(array.T))


def test_known_bits(tmp_path):
    data = np.array([0x3F80, 0xC000, 0x7F80], "<u2").tobytes() + bytes([0x38, 0x80, 0x7E])
    header = {"b": entry([3], 0, 6, "BF16"), "f": entry([3], 6, 9, "F8_E4M3")}
    path = file_of(tmp_path / "x", header, data)
    found = open_safetensors(path)
    assert found["b"].tolist() == [1, -2, np.inf] and found["f"].tolist() == [1, 0, 448]


def test_a_number_that_a_dtype_cannot_hold(tmp_path):
    with pytest.raises(InteropError, match="'w' has numbers up to 7e[+]04, above the largest"):
        write_safetensors(tmp_path / "x", {"w": np.array([1, 70_000.0])}, "F16")
    with pytest.raises(InteropError, match="above the largest of F8_E4M3"):
        write_safetensors(tmp_path / "x", {"w": np.array([1, 500.0])}, "F8_E4M3")
    assert not list(tmp_path.iterdir())
    write_safetensors(tmp_path / "x", {"w": np.array([np.inf, np.nan, 1])}, "BF16")
    with pytest.raises(InteropError, match="no dtype complex128"):
        write_safetensors(tmp_path / "x", {"w": np.ones(2, complex)})


ROW = entry([2], 0, 8)
DATA = b"\0" * 8


@pytest.mark.parametrize("header, data, said", [
    ({"w": ROW}, DATA[:7], "'w' ends at byte 8 of 7: the file is truncated"),
    ({"w": ROW}, DATA + b"1", "1 bytes behind its last array"),
    ({"w": ROW, "v": entry([1], 4, 8)}, DATA, "'v' begins at byte 4, not 8: it overlaps with 'w'"),
    ({"w": ROW, "v": entry([2], 0, 8)}, DATA, "begins at byte 0, not 8: it overlaps"),
    ({"w": ROW, "v": entry([1], 12, 16)}, DATA * 2, "it leaves a gap behind 'w'"),
    ({"w": entry([3], 0, 8)}, DATA, r"'w' is F32 \[3\], 12 bytes, but has 8"),
    ({"w": entry([2], 8, 0)}, DATA, "but has -8"),
    ({"w": entry([1 << 40, 1 << 40], 0, 8)}, DATA, "but has 8"),
    ({"w": entry([-2], 0, 8)}, DATA, "shape of 'w' is .-2., not sizes"),
    ({"w": entry([True, 2], 0, 8)}, DATA, "shape of 'w'"),
    ({"w": entry([2.0], 0, 8)}, DATA, "shape of 'w'"),
    ({"w": entry([2], 0, 8, "F4")}, DATA, "'w' has dtype 'F4', which is not known here"),
    ({"w": entry([2], 0, 8, ["F32"])}, DATA, "'w' has dtype"),
    ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}, DATA, "data_offsets of 'w' are 1"),
    ({"w": {"dtype": "F32", "shape": [2]}}, DATA, "data_offsets of 'w' is None"),
    ({"w": [0, 8]}, DATA, "'w' is .0, 8., not dtype, shape"),
    (b'{"w": 1, "w": 2}', DATA, "'w' is there twice"),
    (b'{"w": NaN}', DATA, "no JSON"), (b'{"w": ', DATA, "no JSON"), (b"[]", DATA, "JSON object"),
    (b"\xff{}", DATA, "no JSON"), (b"[" * 100_000, DATA, "no JSON"),
])
def test_files_that_are_refused(tmp_path, header, data, said):
    path = file_of(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(InteropError, match=said) as raised:
        open_safetensors(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("claimed", [1, 9, 1 << 40, (1 << 64) - 1])
def test_headers_of_a_wrong_length(tmp_path, claimed):
    path = file_of(tmp_path / "bad", {}, b"", claimed)
    with pytest.raises(InteropError, match="truncated|no JSON"):
        open_safetensors(path)


def test_short_empty_and_missing_files(tmp_path):
    for name, content in (("empty", b""), ("short", b"\2\0\0"), ("eight", b"\2" + b"\0" * 7)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InteropError, match=name):
            open_safetensors(tmp_path / name)
    with pytest.raises(InteropError, match="cannot be read"):
        open_safetensors(tmp_path / "none.safetensors")
    with pytest.raises(InteropError, match="neither model.safetensors nor"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "x.ckpt"])
def test_pickles_are_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\4")
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(InteropError, match=f"{re.escape(name)} is a pickle, which can run any"):
            open_safetensors(path)


def write_parts(folder, arrays, largest):
    for name, write in model_files(arrays, largest=largest).items():
        with (folder / name).open("wb") as file:
            write(file)


def test_several_files_with_an_index(tmp_path):
    arrays = {f"w{i}": np.full((i + 1, 2), i, np.float32) for i in range(5)}
    write_parts(tmp_path, arrays, largest=48)
    assert len(list(tmp_path.glob("model-*-of-00003.safetensors"))) == 3
    found = open_safetensors(tmp_path)
    assert list(found) == list(arrays) and len(found) == 5
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in arrays.values())


def test_one_file_needs_no_index(tmp_path):
    write_parts(tmp_path, {"w": np.ones(3)}, largest=24)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("change, said", [
    (lambda m: m | {"w9": "a"}, "a has no 'w9', which"), (lambda m: {"w0": 3}, "weight_map"),
    (lambda m: m | {"w0": "../a"}, "'../a' is not the name of a file in this folder"),
    (lambda m: m | {"w0": "/etc/passwd"}, "not the name"), (lambda m: [], "weight_map"),
    (lambda m: m | {"w0": "gone"}, "gone cannot be read"),
    (lambda m: m | {"w1": "b"}, "'w1' is in b and in a"),
])
def test_indices_that_are_refused(tmp_path, change, said):
    ones = np.ones(2, np.float32)
    write_safetensors(tmp_path / "a", {"w0": ones, "w1": ones})
    write_safetensors(tmp_path / "b", {"w1": ones})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": change({"w0": "a"})}))
    with pytest.raises(InteropError, match=said):
        open_safetensors(tmp_path)


def test_rows_are_a_view_of_the_mapped_file(tmp_path):
    path = write_safetensors(tmp_path / "x", {"w": np.arange(10.0)})
    array = SafeTensors(path)["w"][:2]
    while not isinstance(array, np.memmap):
        array = array.base
    assert array.filename == path
