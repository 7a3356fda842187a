"""The web application: OpenAI's /v1/completions for a checkpoint, on any ASGI server.

    POST /v1/completions    answers; with "stream": true as server-sent events (`streaming.py`)
    GET  /v1/models         the name of the model
    GET  /metrics           the engine's figures
    GET  /health            {"status": "ok"}

When a client leaves, its requests are cancelled and their blocks are freed.  At shutdown the server
still answers the requests that run.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..inference.engine import Generation
from ..inference.engine_metrics import summary_of
from .detokenizer import Detokenizer
from .protocol import BadRequest, read_completion
from .service import Draining, Service
from .streaming import AnswerTexts, stream_events
from .text_model import TextEngine, TextModel
from .writer import CompletionWriter

MOST_BYTES, MOST_SECONDS = 4 << 20, 60      # of a request's body


def make_app(text: TextModel, engine: TextEngine) -> Starlette:
    """The application that answers with the model `text`, which `engine` runs."""
    server = Server(text, engine)
    return Starlette(routes=[
        Route("/v1/completions", server.complete, methods=["POST"]),
        Route("/v1/models", server.models), Route("/metrics", server.metrics),
        Route("/health", server.health)], lifespan=server.lifespan,
        exception_handlers={404: not_found, 405: not_found, ClientDisconnect: client_left})


async def not_found(request: Request, error: Exception) -> Response:
    """The answer to an unknown path or method."""
    status = getattr(error, "status_code", 404)
    return refusal(BadRequest(f"{request.method} {request.url.path} is unknown: POST to "
                              "/v1/completions", None, status))


async def client_left(request: Request, error: Exception) -> Response:
    """The answer for a client that has left; it is never sent."""
    return Response(status_code=499)


def refusal(error: BadRequest) -> Response:
    """The answer to a request that is refused."""
    return JSONResponse(error.body(), error.status)


class Server:
    """The endpoints, for one model and one engine."""

    def __init__(self, text: TextModel, engine: TextEngine):
        self.text, self.engine = text, engine
        self.service: Service

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """The time between start and shutdown of the server."""
        self.service = Service(self.engine)
        self.service.start()
        yield
        await self.service.drain()

    async def health(self, request: Request) -> Response:
        """Answer that the server runs."""
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """The list of models, which has one entry."""
        return JSONResponse({"object": "list", "data": [
            {"id": self.text.name, "object": "model", "owned_by": "minipar", "created": 0}]})

    async def metrics(self, request: Request) -> Response:
        """The engine's figures; null where nothing was measured."""
        engines = self.engine.engines
        figures = summary_of([(each.metrics, each.scheduler) for each in engines])._asdict()
        return JSONResponse({name: None if isinstance(value, float) and math.isnan(value)
                             else value for name, value in figures.items()}
                            | {"blocks_used": sum(each.scheduler.pool.num_used
                                                  for each in engines)})

    async def complete(self, request: Request) -> Response:
        """Answer a request for completions."""
        try:
            asked = read_completion(await read_json(request), self.text)
            detokenizer = Detokenizer(self.text.tokenizer, asked.stops, asked.ends)
            generations = await self.service.submit(
                asked.prompts, asked.max_tokens, asked.params, asked.n,
                detokenizer, asked.logprobs)
        except BadRequest as error:
            return refusal(error)
        except Draining as error:
            return refusal(BadRequest(str(error), status=503))
        except ValueError as error:                 # the request can never run
            return refusal(BadRequest(str(error)))
        writer = CompletionWriter(self.text, asked)
        texts = AnswerTexts(self.text, asked, generations)
        if asked.stream:
            events = stream_events(self.service, texts, writer, generations, asked.include_usage)
            return StreamingResponse(events, media_type="text/event-stream")
        return await self._whole(request, texts, writer, generations)

    async def _whole(self, request: Request, texts: AnswerTexts, writer: CompletionWriter,
                     generations: Sequence[Generation]) -> Response:
        """Wait for all answers, and return them.  Raises ClientDisconnect if the client leaves."""
        async def finish() -> None:
            await writer.score(self.service)
            async for _ in self.service.steps(generations):
                pass

        async with self.service.cancelling(generations):
            work, leaving = asyncio.create_task(finish()), asyncio.create_task(left(request))
            try:
                await asyncio.wait([work, leaving], return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    raise ClientDisconnect
                work.result()
            except RuntimeError as error:
                return refusal(BadRequest(str(error), status=500))
            finally:
                work.cancel()
                leaving.cancel()
        choices = [writer.choice(new) for new in texts.news()]
        return JSONResponse(writer.body(choices, writer.usage(texts.answers)))


async def read_json(request: Request) -> Any:
    """The body of a request.  Raises BadRequest if it is no JSON, too long, or never complete."""
    try:
        async with asyncio.timeout(MOST_SECONDS):       # else it could keep the server from ending
            body = await read_body(request)
    except TimeoutError as error:
        raise BadRequest(f"the body did not end within {MOST_SECONDS} seconds: send as many bytes "
                         "as Content-Length says", status=408) from error
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from error


async def read_body(request: Request) -> bytes:
    """The bytes of a request.  Raises BadRequest for too many."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise BadRequest(f"the body has more than {MOST_BYTES} bytes", status=413)
    return body


async def left(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
