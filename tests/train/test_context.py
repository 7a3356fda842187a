"""Training with context parallelism: flags, meshes, checkpoints of one process, what is refused."""

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main
from minipar.inference import generate
from minipar.launcher import UsageError
from minipar.serve.text_model import make_engine
from minipar.train import train
from minipar.train.checkpoints.models import open_model
from tests.train.test_train import losses, parse

RUN = ["--data", "synthetic", "--steps", "4", "--warmup", "1", "--dtype", "float64", "--layers",
       "2", "--width", "16", "--heads", "4", "--set", "model.kv_heads=2", "--context", "12",
       "--batch", "8",
       "--dropout", "0.1"]


@pytest.mark.parametrize("words", [
    "--mesh cp=3", "--mesh cp=4 --set context.order=contiguous",
    "--mesh cp=2 --set context.order=striped",
    "--mesh cp=2,dp=2 --context-method all_gather --strategy fsdp --accumulate 2",
    "--mesh cp=4 --context-method ulysses", "--mesh cp=4 --set context.ulysses_degree=2",
    "--mesh pp=2,cp=2 --strategy zero1", "--mesh cp=2,tp=2 --sequence-parallel --context 16"])
@pytest.mark.one_in(2)
def test_every_mesh_is_one_rank(words):
    sizes = ["--context", "16"] if "--context 16" in words else []
    np.testing.assert_allclose(train(parse(*RUN, *words.split())).losses,
                               train(parse(*RUN, *sizes)).losses, rtol=1e-10)


@pytest.mark.parametrize("then", ["--mesh dp=2,tp=2", "--mesh cp=3", "--ranks 1"])
@pytest.mark.one_in(2)
def test_another_mesh_goes_on(then, tmp_path):
    whole = losses(1, parse(*RUN))
    train(parse(*RUN, "--mesh", "cp=2", "--strategy", "zero1", "--save-every", "2", "--out",
                str(tmp_path)))
    half = tmp_path / "checkpoint.previous.npz"
    assert files.load(half).description["step"] == 2
    found = train(parse(*RUN, *then.split(), "--resume", str(half))).losses
    np.testing.assert_allclose(found, whole, rtol=1e-10)


def test_a_model_trained_so_is_a_plain_one(tmp_path, capsys):
    main(["train", *RUN, "--mesh", "cp=2", "--sample", "5", "--out", str(tmp_path)])
    model = open_model(tmp_path)[2]
    assert len(list(generate(model, np.array([1, 2, 3]), 4, temperature=0))) == 4
    main(["evaluate", str(tmp_path)])
    assert "nats" in capsys.readouterr().out
    with pytest.raises(UsageError, match="over pp, dp and tp, not over cp: a model that was train"):
        make_engine(model, None, object(), {"cp": 2})


@pytest.mark.parametrize("words", [
    "--precision bf16", "--precision fp16", "--remat selective", "--remat full",
    "--offload activations,optimizer", "--remat optimal:200KB"])
@pytest.mark.one_in(6)
def test_precision_memory_and_verify(words, capsys):
    plain = [word for word in RUN if word not in ("--dtype", "float64")]
    main(["train", *plain, "--mesh", "cp=4", *words.split(), "--verify", "2"])
    out = capsys.readouterr().out
    assert "the same: after 2 steps in float64, 4 simulated ranks" in out
    assert "cp=4, ddp, ring, zigzag" in out


MISTAKES = {
    "--context-method ring": "add cp to the mesh, for example --mesh cp=2",
    "--mesh dp=2 --set context.order=zigzag": "--set context.order says how the ranks of cp",
    "--mesh cp=1 --set context.ulysses_degree=1": "--set context.ulysses_degree says how",
    "--mesh cp=4 --set context.ulysses_degree=3": "does not divide the 4 ranks of cp",
    "--mesh cp=4 --set context.ulysses_degree=2 --context-method ulysses":
        "leave context.ulysses_degree out",
    "--mesh cp=4 --context-method tree": "argument --context-method: invalid choice: 'tree'",
    "--mesh cp=3 --context-method ulysses": "4 heads with 2 of keys and values to 3 ranks, which "
                                            "does not divide: choose a degree of 1, 2, 4",
    "--mesh cp=2 --data digits": "trains an MLP, which has no tokens",
    "--mesh cp=2 --strategy dp": "whose rank 0 drives all others, does not go with --mesh cp=2",
    "--mesh cp=2,tp=2 --sequence-parallel --context 10": "a --context that is a multiple of 8",
    "--mesh cp=2 --experts 4": "--set experts.balance_loss=0 and experts.bias_rate=0.001",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(words, capsys):
    try:
        status = main(["train", *RUN, *words.split()])
    except SystemExit as error:                     # found on the ranks
        status = error.code
    printed = capsys.readouterr()
    assert status == 2
    assert MISTAKES[words] in printed.err and printed.err.count("\n") == 1
