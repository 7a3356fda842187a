"""`minipar serve CHECKPOINT`: answer OpenAI's /v1/completions over HTTP.

    minipar serve out/gpt --port 8000
    curl localhost:8000/v1/completions -d '{"prompt": "def ", "max_tokens": 20}'

Ctrl-C or SIGTERM: running requests are answered, new ones refused.  A second Ctrl-C cuts them off.
Needs `pip install 'minipar[serve]'`.
"""

import argparse
import errno
import logging
import signal
import socket
from contextlib import suppress
from pathlib import Path

from ...inference import Engine, ModelRunner
from ...inference.cache import CACHES
from ...launcher import INTERRUPTED, UsageError
from ...serve.text_model import open_text_model
from ..tables import Output
from .options import add_scheduling, scheduling_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT",
                        help="a checkpoint of a GPT, or the folder of one")
    parser.add_argument("--host", default="127.0.0.1",
                        help="address to listen on (127.0.0.1: this machine only)")
    parser.add_argument("--port", type=int, default=8000, metavar="N",
                        help="port; 0: any that is free (8000)")
    add_scheduling(parser)


def main(options: argparse.Namespace, output: Output) -> None:
    """Serve until Ctrl-C or SIGTERM.  Raises UsageError."""
    try:
        import uvicorn

        from ...serve.app import make_app
    except ImportError as error:
        raise UsageError(f"minipar serve needs {error.name}: pip install 'minipar[serve]'") \
            from error
    if not options.host:
        raise UsageError("--host is empty: 127.0.0.1 is this machine only, 0.0.0.0 every address")
    if not 0 <= options.port <= 65535:
        raise UsageError(f"--port is a number from 0 to 65535, not {options.port}")
    text = open_text_model(options.checkpoint)
    config = scheduling_of(options, text)
    engine = Engine(ModelRunner(text.model, config.num_blocks, config.block_size,
                                CACHES[options.cache]), config)
    listener = listen(options.host, options.port)
    address, port = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    output.text(f"{text.name}: http://{shown}:{port}/v1/completions, Ctrl-C ends")
    server = uvicorn.Server(uvicorn.Config(make_app(text, engine), log_level="warning"))
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
