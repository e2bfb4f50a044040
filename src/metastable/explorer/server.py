"""The server of the explorer: a few fixed files, one WebSocket, two requests. Nothing in a URL reaches the file system."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib import resources
from typing import Any

from metastable.errors import InvalidInputError, MetastableError, missing_extra

try:
    from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
    from starlette.responses import JSONResponse, PlainTextResponse
except ImportError as reason:
    raise missing_extra("fastapi", "explore", "the explorer") from reason

from metastable.explorer import limits, protocol
from metastable.explorer.files import MEDIA, static_files
from metastable.explorer.pool import Pool
from metastable.explorer.python_code import python_code
from metastable.explorer.security import Guard, allowed_hosts
from metastable.explorer.session import Session, greeting
from metastable.explorer.setting import Clock, Setting, only

PORT = 8642
"""Default port; the next free one is taken when it is in use."""
FORMATS = ("csv", "zarr", "mp4", "toml")
TRY_AGAIN_LATER = 1013
"""WebSocket close code for a server that is full."""


@cache
def plotly_script() -> bytes:
    """plotly.js (5 MB) as the installed package carries it; read when a chart is first enlarged."""
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()


def create_app(host: str, port: int, workers: int = 2, on_ready: Callable[[], None] | None = None) -> Any:
    """The ASGI application for a server that listens on `host` and `port`."""
    pool = Pool(workers)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await pool.start()
        if on_ready is not None:
            asyncio.get_running_loop().run_in_executor(None, on_ready)
        yield
        await pool.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    _add_files(app)
    _add_requests(app, pool)
    _add_socket(app, pool)
    return Guard(app, allowed_hosts(host, port))


def _add_files(app: FastAPI) -> None:
    # Read once; a request names one of them or gets nothing.
    files = static_files()

    def answer(name: str) -> Response:
        if name not in files:
            return PlainTextResponse("there is no such file", 404)
        content, media = files[name]
        return Response(content, media_type=media)

    @app.api_route("/", methods=["GET", "HEAD"])
    async def page() -> Response:
        return answer("index.html")

    @app.api_route("/static/{name:path}", methods=["GET", "HEAD"])
    async def static(name: str) -> Response:
        return answer(name)

    @app.get("/plotly.js")
    async def charts() -> Response:
        script = await asyncio.get_running_loop().run_in_executor(None, plotly_script)
        return Response(script, media_type=MEDIA[".js"], headers={"cache-control": "max-age=86400"})


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object in the body of a request, read only as far as the limit allows."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise protocol.MessageError("the request must be JSON")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limits.MESSAGE_BYTES:
            raise protocol.MessageError(f"the request is larger than {limits.MESSAGE_BYTES // 1024} KiB")
    return protocol.parse(bytes(body))


def _add_requests(app: FastAPI, pool: Pool) -> None:
    exporting = asyncio.Semaphore(limits.EXPORTS_AT_ONCE)

    @app.exception_handler(MetastableError)
    async def explain(request: Request, reason: Exception) -> Response:
        return JSONResponse({"message": str(reason)[:1000]}, 422)

    @app.post("/python")
    async def code(request: Request) -> Response:
        data = only(await _body(request), ("settings", "clock"), "the request")
        listed = data.get("settings")
        if not isinstance(listed, list) or len(listed) not in (1, 2):
            raise InvalidInputError("settings must be a list of one or two settings")
        clock = Clock.from_dict(data.get("clock"))
        settings = [Setting.from_dict(item) for item in listed]
        for setting in settings:
            setting.check_clock(clock)
        return PlainTextResponse(python_code(settings, clock))

    @app.post("/download/{kind}")
    async def download(kind: str, request: Request) -> Response:
        if kind not in FORMATS:
            return PlainTextResponse("there is no such format", 404)
        data = only(await _body(request), ("setting", "clock"), "the request")
        setting, clock = Setting.from_dict(data.get("setting")), Clock.from_dict(data.get("clock"))
        setting.check_clock(clock)
        order = {"kind": "export", "format": kind, "setting": setting.to_dict(), "clock": clock.to_dict()}
        if exporting.locked():
            return JSONResponse({"message": "two files are being made already; try again in a moment"}, 503)
        async with exporting:
            return await _file(pool, order, setting.key(clock))


async def _file(pool: Pool, order: dict[str, Any], key: str) -> Response:
    about: dict[str, Any] = {}
    body = bytearray()
    async with contextlib.aclosing(pool.run(order, key, limits.EXPORT_SECONDS)) as messages:
        async for message in messages:
            if isinstance(message, bytes):
                body += message
            else:
                about = message
    disposition = f'attachment; filename="{about["name"]}"'
    return Response(bytes(body), media_type=about["media"], headers={"content-disposition": disposition})


def _add_socket(app: FastAPI, pool: Pool) -> None:
    open_now: set[WebSocket] = set()

    @app.websocket("/socket")
    async def connect(websocket: WebSocket) -> None:
        await websocket.accept()
        if len(open_now) >= limits.CONNECTIONS:
            message = f"{limits.CONNECTIONS} pages are open already; close one and reload this page"
            await websocket.send_text(protocol.dumps({"type": "full", "message": message}))
            await websocket.close(TRY_AGAIN_LATER)
            return
        open_now.add(websocket)

        async def send(message: str | bytes) -> None:
            try:
                await (websocket.send_text(message) if isinstance(message, str) else websocket.send_bytes(message))
            except WebSocketDisconnect:
                raise ConnectionError("the page went away") from None

        session = Session(pool, send)
        try:
            await session.send(greeting())
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                await session.handle(message.get("text") or message.get("bytes") or "")
        except (WebSocketDisconnect, RuntimeError, ConnectionError):
            pass  # the page went away while something was being sent to it
        finally:
            open_now.discard(websocket)
            await session.close()


# --------------------------------------------------------------------------------------------------------- serve


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket on `port`, or for None on the default port or the next free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [port] if port is not None else [*range(PORT, PORT + 20), 0]
    for candidate in wanted:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, candidate))
        except OSError as reason:
            sock.close()
            failure = reason
            continue
        sock.listen(128)
        return sock
    raise InvalidInputError(f"cannot listen on {host}:{port}: {failure.strerror}; choose another port, or leave it out")


def serve(
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    workers: int = 2,
    announce: Callable[[str], None] = print,
) -> None:
    """Run the explorer until interrupted.

    `host`: the address to listen on; anything but the loopback address lets other machines in. `port`: None takes 8642 or the
    next free one. `browser`: open the page. `workers`: processes that compute. `announce`: is given the address of the page.
    """
    try:
        import uvicorn
        import websockets  # noqa: F401  (the WebSocket implementation of uvicorn)
    except ImportError as reason:
        raise missing_extra(reason.name or "uvicorn", "explore", "the explorer") from reason
    sock = listen(host, port)
    actual = int(sock.getsockname()[1])
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    address = f"http://{shown}:{actual}/"

    def ready() -> None:
        announce(address)
        if browser:
            webbrowser.open(address)

    config = uvicorn.Config(
        create_app(host, actual, workers, ready),
        log_level="warning",
        access_log=False,
        ws="websockets-sansio",
        ws_max_size=limits.MESSAGE_BYTES,
        ws_per_message_deflate=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    with sock:
        uvicorn.Server(config).run(sockets=[sock])
