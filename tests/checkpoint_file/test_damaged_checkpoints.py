"""Checkpoints of every kind, damaged in every place: they are refused in one line, or still right.
"""

import io
import json
import zipfile
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.autograd import no_grad
from minipar.comm import Cluster
from minipar.commands.main import main
from minipar.launcher import UsageError
from minipar.nn import GPT, GPTConfig
from minipar.train import start_run
from minipar.train.check import checked
from minipar.train.checkpoints import models as saved
from minipar.train.tasks import make_task

pytestmark = pytest.mark.usefixtures("no_pictures")

GPT_WORDS = "--data synthetic --layers 1 --heads 2 --width 8 --context 8 --batch 2 --steps 2"
DIGITS = "--data digits --hidden 8,6 --batch 4 --steps 2 --optimizer sgd"
MADE = {        # every kind: the command that writes it
    "with optimizer": f"train {GPT_WORDS}",
    "sharded, scaled": f"train {DIGITS} --strategy fsdp --ranks 2 --precision fp16",
    "a Llama with experts": f"train {GPT_WORDS} --set model.norm=rms --set model.mlp=swiglu "
                            "--set model.rope=10000 --set model.bias=false "
                            "--experts 2 --set experts.top_k=1 --set experts.capacity_factor=1.5",
    "pruned": "prune {sharded, scaled} --amount 0.5",
    "structured": "prune {with optimizer} --method structured --amount 0.5 --steps 1",
    "quantized": "quantize {with optimizer} --bits 4 --asymmetric",
    "integers": "quantize {sharded, scaled} --activations",
    "floats": "quantize {with optimizer} --format mxfp4",
    "pruned, quantized": "quantize {pruned} --bits 8",
    "being pruned": "prune {with optimizer} --amount 0.5 --gradual --steps 4 --save-every 3",
    "distilled": "distill {with optimizer} --width 4 --steps 1"}
KINDS = ("plain", *MADE)
OFTEN = ("with optimizer", "integers", "being pruned")      # the kinds that the others are made of
WRONG = (None, "x", "", -1, 0, 1.5, 10**12, 10**40, True, [], [3, "x"], {}, {"x": 1}, float("nan"))
GONE = object()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A folder for each kind."""
    top = tmp_path_factory.mktemp("kinds")
    folders = {name: top / name.replace(", ", "-").replace(" ", "-") for name in KINDS}
    config = GPTConfig(16, context=8, num_layers=1, num_heads=2, width=8)
    saved.save_model(folders["plain"], GPT(config).initialize(), "synthetic")
    for name, line in MADE.items():
        words = line
        for known, folder in folders.items():
            words = words.replace(f"{{{known}}}", str(folder))
        assert main([*words.split(), "--out", str(folders[name])]) == 0
    folders["being pruned"] /= files.PREVIOUS
    assert "pruning" in files.load_description(folders["being pruned"])
    return folders


def run_it(found: files.Checkpoint, monkeypatch) -> None:
    """Open a checkpoint as `evaluate` does, and go on from it as `train --resume` does.

    Raises UsageError for one that is damaged.
    """
    monkeypatch.setattr(files, "load", lambda path: deepcopy(found))
    monkeypatch.setattr(files, "load_description", lambda path: deepcopy(found.description))
    _, task, model = saved.open_model(Path("it"))
    shape = (1, 8) if isinstance(model, GPT) else (1, 64)
    with no_grad(), np.errstate(all="ignore"):
        model.logits(np.zeros(shape, np.int64 if isinstance(model, GPT) else np.float32))
    config = saved.read_config_to_resume(Path("it")).updated(resume=Path("it"), steps=10**6)
    config = checked(config)
    Cluster(1).run(lambda comm: start_run(comm, config, make_task(config)))


def places(value, path=()):
    """The path of every field of a description."""
    if path:
        yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value[:1])
        for key, inner in items:
            yield from places(inner, (*path, key))


def altered(description: dict, path: tuple, value: object) -> dict:
    found = deepcopy(description)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return found


@pytest.mark.slow
@pytest.mark.parametrize("num_values", [1, pytest.param(len(WRONG), marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_field_altered_in_turn(checkpoints, monkeypatch, kind, num_values):
    whole = files.load(checkpoints[kind])
    if not any(step["kind"] == "quantized" for step in whole.description.get("compression", [])):
        run_it(whole, monkeypatch)
    fields, refused = list(places(whole.description)), 0
    assert len(fields) > 40
    for i, path in enumerate(fields):
        # Each field of each kind gets some of the wrong values; all fields together get all.
        start = num_values * (i + KINDS.index(kind))
        for value in [GONE, *(WRONG[(start + j) % len(WRONG)] for j in range(num_values))]:
            damaged = files.Checkpoint(whole.model, whole.optimizer,
                                       altered(whole.description, path, value))
            try:
                run_it(damaged, monkeypatch)
            except UsageError as error:
                assert "\n" not in str(error) and len(str(error)) < 600, error
                refused += 1
    assert refused > (1 + num_values) * len(fields) / 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=[pytest.mark.slow] * (kind not in OFTEN)) for kind in KINDS])
def test_every_array_altered_in_turn(checkpoints, monkeypatch, kind):
    whole = files.load(checkpoints[kind])
    for part in ("model", "optimizer"):
        for name, array in getattr(whole, part).items():
            for other in (None, array[:-1], array[None], array.astype(np.float16),
                          array.astype(np.int8) - 1, np.zeros(0)):
                arrays = dict(getattr(whole, part))
                if other is None:
                    del arrays[name]
                else:
                    arrays[name] = other
                damaged = files.Checkpoint(**{**vars(whole), part: arrays})
                try:
                    run_it(damaged, monkeypatch)
                except UsageError as error:
                    assert "\n" not in str(error)


def same(one: files.Checkpoint, other: files.Checkpoint) -> bool:
    return one.description == other.description and all(
        ours.keys() == theirs.keys() and all(np.array_equal(ours[n], theirs[n]) for n in ours)
        for ours, theirs in ((one.model, other.model), (one.optimizer, other.optimizer)))


@pytest.mark.parametrize("kind", ["with optimizer", "pruned", "integers"])
@pytest.mark.one_in(2)
def test_truncated_or_flipped_anywhere(checkpoints, tmp_path, kind):
    content, path = (checkpoints[kind] / files.NEWEST).read_bytes(), tmp_path / "damaged.npz"
    whole, refused = files.load(checkpoints[kind]), 0
    directory = content.index(b"PK\x01\x02")
    # Arrays and headers here and there, the directory after them, and both ends.
    spots = [*range(0, directory, directory // 60), *range(64),
             *range(directory, len(content), (len(content) - directory) // 60),
             *range(len(content) - 22, len(content))]
    for spot in spots:
        flipped = bytearray(content)
        flipped[spot] ^= 1 << spot % 8
        for damaged in (bytes(flipped), content[:spot]):
            path.write_bytes(damaged)
            try:
                assert same(files.load(path), whole)
            except files.CheckpointError as error:
                assert str(path) in str(error) and "\n" not in str(error)
                refused += 1
    assert refused > 1.5 * len(spots)


def npy(descr: str, shape: str, data: bytes) -> bytes:
    """An .npy of any header."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    header += b" " * (-len(header) - 11 & 63) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize("descr, shape, says", [
    ("'<f4'", "(100000000000,)", "claims to be float32 (100000000000,), but has 8 bytes"),
    ("'<f4'", "(3,)", "claims to be float32 (3,)"), ("'<f4'", "(-1, -2)", "claims to be"),
    ("'|O'", "(1,)", "claims to be object"), ("'<U2'", "(1,)", "claims to be <U2"),
    ("'(100000000000,)f4'", "(0,)", "damaged"), ("'<f4'", "(0, 100000000000000000000)", "damaged"),
    ("'<f4'", f"({'1,' * 99})", "damaged"), ("'<f4'", "__import__('os')", "damaged"),
    ("'<f4'", "[[[[[[", "damaged"), ("5", "(2,)", "damaged"), ("'<f4'", "2", "damaged")])
def test_a_header_that_claims_what_is_not_there(tmp_path, capsys, descr, shape, says):
    description = np.frombuffer(json.dumps({"format": files.FORMAT}).encode(), np.uint8)
    written = io.BytesIO()
    np.save(written, description)
    with zipfile.ZipFile(tmp_path / files.NEWEST, "w") as archive:
        archive.writestr("model/a.npy", npy(descr, shape, bytes(8)))
        archive.writestr("description.npy", written.getvalue())
    assert main(["evaluate", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_a_zip_that_unfolds_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(10**6))
    with pytest.raises(files.CheckpointError, match="compressed, which np.savez does not do"):
        files.load(tmp_path / "bomb.npz")


def test_a_mask_of_another_size_is_refused(checkpoints, monkeypatch):
    whole = files.load(checkpoints["pruned"])
    for shape in ([10**6, 10**6], [-1, 8], [2.5, 3]):
        damaged = files.Checkpoint({**whole.model, "0.weight/shape": np.array(shape)},
                                   whole.optimizer, whole.description)
        with pytest.raises(UsageError, match="a mask"):
            run_it(damaged, monkeypatch)
