"""`minipar serve CHECKPOINT`: answer OpenAI's /v1/completions over HTTP.

    minipar serve out/gpt --port 8000
    curl localhost:8000/v1/completions -d '{"prompt": "def ", "max_tokens": 20}'
    mpirun -n 4 minipar serve out/gpt --mesh tp=2,pp=2      rank 0 has HTTP, the others follow it

After Ctrl-C or SIGTERM it answers the running requests and refuses new ones.  A second Ctrl-C cuts
the running ones off.  It needs `pip install 'minipar[serve]'`.
"""

import errno
import logging
import math
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType

from ...comm import Communicator
from ...environment import launched
from ...inference.cache import CACHES
from ...launcher import INTERRUPTED, UsageError, launch, on_first_rank
from ...serve.over_ranks import LeadingEngine
from ...serve.text_model import TextEngine, TextModel, make_engine, open_text_model
from ...train.option import checkpoint, option
from ..tables import Output
from .options import SchedulingOptions, sizes_for

TOGETHER = 0.5          # seconds within which a terminal and mpirun pass on the same Ctrl-C


def main(options: "Options", output: Output) -> None:
    """Serve until Ctrl-C or SIGTERM.  Raises UsageError."""
    try:
        for name in ("starlette", "uvicorn"):
            import_module(name)
    except ImportError as error:
        raise UsageError(f"minipar serve needs {error.name}: pip install 'minipar[serve]'") \
            from error
    if not options.host:
        raise UsageError("--host is empty: 127.0.0.1 is this machine only, 0.0.0.0 every address")
    sizes = sizes_for(options.mesh, None if launched() else 1)
    text = open_text_model(options.checkpoint)
    scheduling = options.scheduling(text)       # mistakes are found before ranks begin
    if launched():
        launch(lambda comm: on_ranks(comm, options, output, text, sizes))
    else:
        listener = listen(options.host, options.port)
        answer(listener, text, make_engine(text.model, scheduling, kind=CACHES[options.cache]),
               output)


@dataclass(frozen=True, kw_only=True)
class Options(SchedulingOptions):
    """The options of the command."""

    checkpoint: Path = checkpoint("a checkpoint of a GPT, or the folder of one")
    host: str = option("127.0.0.1", "address to listen on",
                       default_text="127.0.0.1: this machine only")
    port: int = option(8000, "port; 0: any that is free", least=0, most=65_535)
    mesh: str | None = option(None, "under mpirun, the grid of ranks: tp=2 (heads over ranks), "
                              "pp=2 (layers over ranks), dp=2 (replicas), or several: pp=2,tp=2",
                              metavar="AXIS=N,…", default_text="a replica on each rank")


def on_ranks(comm: Communicator, options: Options, output: Output, text: TextModel,
             sizes: dict[str, int]) -> None:
    """Collective.  Serve on rank 0; on other ranks follow rank 0's steps."""
    engine = make_engine(text.model, options.scheduling(text), comm, sizes,
                         CACHES[options.cache])
    listener = on_first_rank(comm, lambda: listen(options.host, options.port))
    leading = LeadingEngine(engine, comm, text.tokenizer)
    if comm.rank:
        for number in (signal.SIGINT, signal.SIGTERM):      # rank 0 ends all when it has answered
            signal.signal(number, signal.SIG_IGN)
        leading.follow()
        return
    try:
        answer(listener, text, leading, output)
    except UsageError as error:
        leading.end(error)
        raise
    leading.end()


def answer(listener: socket.socket, text: TextModel, engine: TextEngine, output: Output) -> None:
    """Answer requests until Ctrl-C or SIGTERM; then finish those that run.

    Raises UsageError if a second Ctrl-C cuts off the running requests.
    """
    import uvicorn

    from ...serve.app import make_app

    class Server(uvicorn.Server):
        """A server that counts the same Ctrl-C from a terminal and from mpirun once."""

        last = -math.inf

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            now, before = time.monotonic(), self.last
            self.last = now
            if not launched() or now - before > TOGETHER:
                super().handle_exit(sig, frame)

    address, port = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    output.text(f"{text.name}: http://{shown}:{port}/v1/completions, Ctrl-C ends")
    server = Server(uvicorn.Config(make_app(text, engine), log_level="warning"))
    # no tracebacks of the requests that a second Ctrl-C cuts off
    logging.getLogger("uvicorn.error").addFilter(lambda record: not server.force_exit)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with listener, suppress(KeyboardInterrupt):     # raised when all requests are answered
        server.run(sockets=[listener])
    if server.force_exit:
        raise UsageError("interrupted twice: the running requests were cut off", INTERRUPTED)
    output.text("all requests are answered")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.  Raises UsageError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no name of a machine"
        is_port = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        raise UsageError(f"cannot listen on {host!r}, port {port} ({reason}): choose another "
                         f"{'--port' if is_port else '--host'}", status=1 if is_port else 2) \
            from error
