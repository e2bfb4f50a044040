"""Who may talk to the server: pages that this server itself delivered, and nobody else.

The server listens on the loopback address. A page on the internet can still make a browser talk to it, so every request must
carry a `Host` that is ours (otherwise a foreign name was made to resolve to this machine: DNS rebinding), and every WebSocket and
every request that changes something an `Origin` that is ours (otherwise it comes from another site).
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]

ANYWHERE = ("0.0.0.0", "::")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """The values of `Host` that mean this server: loopback names, and the address it was told to listen on."""
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    names = {*LOOPBACK, name.lower()}
    if host in ANYWHERE:
        names |= {socket.gethostname().lower(), *_own_addresses()}
    with_port = {f"{item}:{port}" for item in names}
    return frozenset(with_port | (names if port == 80 else set()))


def _own_addresses() -> set[str]:
    """The addresses that this machine's name resolves to."""
    try:
        return set(socket.gethostbyname_ex(socket.gethostname())[2])
    except OSError:
        return set()


FRAME = "/static/frame.html"
"""The page of an enlarged chart, which only our page may frame."""
FRAME_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src blob: data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""What it may do: draw. Plotly styles elements inline; the page around it has no need to allow that."""


def headers(hosts: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """Headers of every answer: nothing from elsewhere is loaded, nothing inline is run, nobody may frame the page."""
    # An IPv6 address cannot be named in a policy; there the browser must read 'self' as the socket too, as current ones do.
    sockets = " ".join(sorted(f"ws://{host}" for host in hosts if not host.startswith("[")))
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        f"connect-src 'self' {sockets}; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
        (b"cache-control", b"no-cache"),
    ]


class Guard:
    """ASGI middleware: refuses foreign hosts and origins before the application sees them, and adds the headers."""

    def __init__(self, app: App, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts
        self._headers = headers(hosts)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        reason = self._refusal(scope)
        if reason is not None:
            await self._refuse(scope, receive, send, reason)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = list(message.get("headers", ()))
                if scope["path"] == FRAME:
                    own.append((b"content-security-policy", FRAME_POLICY.encode()))
                names = {name for name, _ in own}
                message = {**message, "headers": own + [item for item in self._headers if item[0] not in names]}
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> str | None:
        found: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            found.setdefault(bytes(name).lower(), []).append(bytes(value).decode("latin-1"))
        host = found.get(b"host", [])
        if len(host) != 1 or host[0].lower() not in self._hosts:
            return "this server answers only under its own local address"
        safe = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        origin = found.get(b"origin", [])
        if not safe and not origin:
            return "the request must say which page it comes from"
        if len(origin) > 1 or (origin and origin[0].lower() not in {f"http://{name}" for name in self._hosts}):
            return "this server answers only its own pages"
        return None

    async def _refuse(self, scope: Scope, receive: Any, send: Any, reason: str) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
            return
        body = reason.encode()
        length = (b"content-length", str(len(body)).encode())
        start = {"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain"), length]}
        await send({**start, "headers": [*start["headers"], *self._headers]})  # type: ignore[misc]
        await send({"type": "http.response.body", "body": body})
