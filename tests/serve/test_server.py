"""`minipar serve` as a process: a client that leaves, Ctrl-C, a port that is taken."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

from minipar.commands.main import main
from minipar.data import CharacterVocabulary
from minipar.nn import GPT, GPTConfig
from minipar.train import save_model

PATIENCE = 30


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    model = GPT(GPTConfig(10, 2000, num_layers=1, num_heads=2, width=8)).initialize(3, np.float64)
    save_model(folder, model, "docs", CharacterVocabulary.from_text("abcdefgh \n"))
    return folder


class Server:
    """A server process; `port` is where it listens."""

    def __init__(self, checkpoint, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minipar", "serve", str(checkpoint), "--port", "0", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = int(line.split("/v1")[0].rpartition(":")[2])

    def get(self, path: str):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as got:
            return json.loads(got.read())

    def post(self, **body) -> socket.socket:
        """An open connection on which a request was sent."""
        text = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: "
                           + str(len(text)).encode() + b"\r\n\r\n" + text)
        return connection

    def wait_for_blocks(self, is_right) -> int:
        deadline = time.monotonic() + PATIENCE
        while not is_right(used := self.get("/metrics")["blocks_used"]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return used


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.one_in(2)
def test_a_client_that_leaves_frees_its_blocks(checkpoint, stream):
    server = Server(checkpoint)
    try:
        connection = server.post(prompt="abc", max_tokens=1900, stream=stream)
        server.wait_for_blocks(lambda used: used > 0)
        connection.close()
        server.wait_for_blocks(lambda used: used == 0)
        assert server.get("/metrics")["num_requests"] == 0
        server.post(prompt="abc").close()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 0
        assert server.process.stderr.read() == ""
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.one_in(2)
def test_ctrl_c_or_sigterm_answers_what_runs_and_ends(checkpoint, number):
    server = Server(checkpoint)
    try:
        connection = server.post(prompt="abc", max_tokens=600, seed=1)
        server.wait_for_blocks(lambda used: used > 0)
        server.process.send_signal(number)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        body = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert len(body["choices"][0]["text"]) == 600
        assert server.process.wait(PATIENCE) == 0
        assert "all requests are answered" in server.process.stdout.read()
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.one_in(2)
def test_a_second_ctrl_c_ends_at_once_and_says_so(checkpoint, stream):
    server = Server(checkpoint)
    try:
        connection = server.post(prompt="abc", max_tokens=1900, n=8, stream=stream)
        server.wait_for_blocks(lambda used: used > 0)
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert server.process.wait(PATIENCE) == 130
        connection.close()
        out, error = server.process.communicate()
        assert not out and error == "minipar: interrupted twice: the running requests were cut " \
            "off\n"
    finally:
        server.process.kill()
        server.process.wait()


def test_mistakes_take_one_line(checkpoint, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(checkpoint), "--port", str(port)]) == 1
    assert "choose another --port" in capsys.readouterr().err
    assert main(["serve", str(checkpoint), "--port", "70000"]) == 2
    assert "--port must be at most 65,535, not 70,000" in capsys.readouterr().err
    for words, message in ((["--blocks", "0"], "--blocks must be at least 1, not 0"),
                           (["--host", ""], "--host is empty"),
                           (["--host", "x" * 70], "choose another --host"),
                           (["--host", "203.0.113.1"], "choose another --host")):
        assert main(["serve", str(checkpoint), "--port", "0", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
