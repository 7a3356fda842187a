"""`mpirun … minipar serve --mesh …`: answers, cancelling, draining, and a rank that dies."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from minipar.commands.main import main
from minipar.environment import find_mpirun, mpirun_environment
from minipar.inference import SchedulerConfig
from minipar.inference.cache import CACHES
from minipar.serve.app import make_app
from minipar.serve.text_model import make_engine, open_text_model
from tests.serve.test_server import Server, checkpoint  # noqa: F401

PATIENCE = 120      # seconds: several processes start
pytestmark = pytest.mark.skipif(
    find_mpirun() is None, reason="there is no mpirun: pip install '.[mpi]'")


class ServerOnRanks(Server):
    """A server process for each rank; `process` is mpirun."""

    def __init__(self, folder, num_ranks: int, *words):
        self.folder = str(folder)
        self.process = subprocess.Popen(
            [find_mpirun(), "-n", str(num_ranks), sys.executable, "-m", "minipar", "serve",
             self.folder, "--port", "0", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=mpirun_environment() | {"OMP_NUM_THREADS": "1"})
        line = self.process.stdout.readline()
        self.port = int(line.split("/v1")[0].rpartition(":")[2])

    def pid_of(self, rank: int) -> int:
        """The process of a rank."""
        for place in Path("/proc").iterdir():
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
                variables = (place / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if self.folder.encode() in words and words[1:2] == [b"-m"] and {
                    f"{name}={rank}".encode() for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
                    } & set(variables):
                return int(place.name)
        raise AssertionError(f"rank {rank} is not there")


@contextmanager
def serving(*arguments):
    server = ServerOnRanks(*arguments)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def choices(answer: bytes) -> list[dict]:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["choices"]


def read_all(connection) -> bytes:
    answer = b""
    while part := connection.recv(1 << 16):
        answer += part
    return answer


@pytest.mark.parametrize(("num_ranks", "words"), [
    (2, ["--mesh", "tp=2", "--cache", "int8"]),
    pytest.param(4, ["--mesh", "tp=2,pp=2"], marks=pytest.mark.slow)])
def test_it_answers_cancels_and_drains_as_one_process(checkpoint, num_ranks, words):  # noqa: F811
    asked = {"prompt": ["abc", "d", "ef"], "max_tokens": 8, "seed": 1, "n": 2, "logprobs": 2}
    text = open_text_model(checkpoint)
    cache = CACHES["int8" if "int8" in words else "full"]
    alone = make_engine(text.model, SchedulerConfig(999, 16), kind=cache)
    with TestClient(make_app(text, alone)) as client:
        expected = client.post("/v1/completions", json=asked).json()["choices"]
    with serving(checkpoint, num_ranks, *words) as server:
        with urllib.request.urlopen(urllib.request.Request(
                f"http://127.0.0.1:{server.port}/v1/completions", json.dumps(asked).encode()),
                timeout=PATIENCE) as answered:
            found = json.loads(answered.read())["choices"]
        assert [each["text"] for each in found] == [each["text"] for each in expected]
        for one, other in zip(found, expected):
            assert one["logprobs"]["token_logprobs"] == pytest.approx(
                other["logprobs"]["token_logprobs"], abs=1e-9)

        connection = server.post(prompt="abc", max_tokens=1900, stream=True)
        server.wait_for_blocks(lambda used: used > 0)
        connection.close()
        server.wait_for_blocks(lambda used: used == 0)

        connection = server.post(prompt="abc", max_tokens=60, seed=1)
        server.wait_for_blocks(lambda used: used > 0)
        os.kill(server.pid_of(0), signal.SIGTERM)       # Open MPI's mpirun would kill all itself
        assert len(choices(read_all(connection))[0]["text"]) == 60
        assert server.process.wait(PATIENCE) == 0
        assert "all requests are answered" in server.process.stdout.read()
        assert server.process.stderr.read() == ""


def test_a_rank_that_dies_ends_all_with_the_report(checkpoint):     # noqa: F811
    with serving(checkpoint, 2, "--mesh", "pp=2") as server:
        connection = server.post(prompt="abc", max_tokens=1900)
        server.wait_for_blocks(lambda used: used > 0)
        os.kill(server.pid_of(1), signal.SIGKILL)
        assert server.process.wait(PATIENCE) != 0
        connection.close()
        # on a busy machine mpirun may be faster than the report of the signal
        assert re.match("minipar: rank 1 of 2 (was killed by signal 9|died suddenly)",
                        server.process.stderr.read())


def test_mistakes_take_one_line(checkpoint, capfd):     # noqa: F811
    done = subprocess.run([find_mpirun(), "-n", "2", sys.executable, "-m", "minipar", "serve",
                           str(checkpoint), "--mesh", "tp=4"], env=mpirun_environment(),
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "--mesh tp=4 is for 4 ranks, but there are 2" in done.stderr
    for mesh, message in (("tp=2,pp=2", "is for 4 ranks, but there is 1: say --mesh dp=1"),
                          ("cp=2", "runs over pp, dp and tp, not over cp")):
        assert main(["serve", str(checkpoint), "--mesh", mesh]) == 2
        error = capfd.readouterr().err
        assert message in error and error.count("\n") == 1
        assert (" -n 4 " in error) == (mesh == "tp=2,pp=2")
