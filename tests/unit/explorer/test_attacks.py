"""The server under attack: foreign hosts and origins, malformed and oversized messages, floods of connections."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import string
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from metastable.explorer import limits, security

SETTING = {"model": {"dim": 2, "beta": 4.0}, "start": {"tokens": 4}}
PATIENCE = 180
"""Seconds to wait for an answer: generous, because machines that test are busy."""
CLOCK = {"until": 5.0}
SIMULATE = {"type": "simulate", "panel": 0, "run": 1, "setting": SETTING, "clock": CLOCK}


def open_socket(server, origin=None, host=None, **rest):
    headers = {} if host is None else {"Host": host}
    origin = f"http://{server.host}" if origin is None else origin
    return connect(server.socket_address, origin=origin or None, additional_headers=headers, max_size=None, **rest)


def request(server, method="GET", path="/", headers=(), body=b""):
    """One HTTP request with exactly these headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers:
        connection.putheader(name, value)
    if body:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body or None)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def ours(server, *more):
    return [("Host", server.host), *more]


# --------------------------------------------------------------------------------------------------- who may talk to it


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", ""]
)
def test_foreign_hosts_are_refused(server, host):
    response, content = request(server, headers=[("Host", host)])
    assert response.status in (400, 403)
    assert b"<html" not in content
    with pytest.raises(InvalidStatus):
        open_socket(server, host=host)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_own_names_are_served(server, name):
    response, content = request(server, headers=[("Host", f"{name}:{server.port}")])
    assert response.status == 200
    assert b"metastable explorer" in content


def test_two_hosts_are_refused(server):
    response, _ = request(server, headers=[("Host", server.host), ("Host", "evil.example")])
    assert response.status in (400, 403)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1", "null", "http://127.0.0.1:1", "file://"]
)
def test_foreign_origins_are_refused(server, origin):
    with pytest.raises(InvalidStatus) as refused:
        open_socket(server, origin=origin)
    assert refused.value.response.status_code == 403
    for path in ("/python", "/download/csv"):
        body = json.dumps({"settings": [SETTING], "setting": SETTING, "clock": CLOCK}).encode()
        headers = ours(server, ("Origin", origin), ("Content-Type", "application/json"))
        response, _ = request(server, "POST", path, headers, body)
        assert response.status == 403


def test_a_socket_without_origin_is_refused(server):
    with pytest.raises(InvalidStatus):
        connect(server.socket_address)
    response, _ = request(server, "POST", "/python", ours(server, ("Content-Type", "application/json")), b"{}")
    assert response.status == 403


def test_forms_of_other_sites_cannot_post(server):
    headers = ours(server, ("Origin", f"http://{server.host}"), ("Content-Type", "text/plain"))
    response, content = request(server, "POST", "/python", headers, b"{}")
    assert response.status == 422
    assert b"must be JSON" in content


def test_every_answer_carries_the_policy(server):
    for path in ("/", "/static/main.js", "/nowhere"):
        response, _ = request(server, path=path, headers=ours(server))
        policy = response.getheader("content-security-policy")
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert response.getheader("x-content-type-options") == "nosniff"
        assert response.getheader("server") is None


def test_only_the_frame_of_a_chart_may_style_inline(server):
    response, _ = request(server, path="/static/frame.html", headers=ours(server))
    policies = response.headers.get_all("content-security-policy")
    assert len(policies) == 1
    assert "script-src 'self'; style-src 'self' 'unsafe-inline'" in policies[0]
    assert "frame-ancestors 'self'" in policies[0]
    assert "connect-src" not in policies[0]


def test_the_chart_library_comes_from_the_installed_package(server):
    response, content = request(server, path="/plotly.js", headers=ours(server))
    assert response.status == 200
    assert response.getheader("content-type").startswith("text/javascript")
    assert b"plotly.js v" in content[:500]
    assert response.headers.get_all("cache-control") == ["max-age=86400"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/....//server.py",
        "/../../etc/passwd",
        "/static/main.js%00.html",
        "/static/",
        "/download/../../etc/passwd",
    ],
)
def test_no_path_reaches_the_file_system(server, path):
    response, content = request(server, path=path, headers=ours(server))
    assert response.status in (403, 404, 405)
    assert b"import" not in content
    assert b"root:" not in content


def test_only_the_address_it_was_told_is_allowed():
    assert "192.0.2.7:8642" in security.allowed_hosts("192.0.2.7", 8642)
    assert "192.0.2.8:8642" not in security.allowed_hosts("192.0.2.7", 8642)
    assert "[2001:db8::1]:8642" in security.allowed_hosts("2001:db8::1", 8642)


# ------------------------------------------------------------------------------------------------------- bad messages


def fuzzed(generator: random.Random):
    """A message that is wrong in one of many ways, most of them close to a right one."""
    message = json.loads(json.dumps(SIMULATE))
    weird = [
        None,
        True,
        -1,
        0,
        2**31,
        1e308,
        -1e308,
        0.1,
        "",
        "x" * 200,
        [],
        {},
        [[]],
        {"a": {}},
        "NaN",
        [1] * 50,
        "../../etc/passwd",
        "<img src=x>",
    ]
    kind = generator.randrange(6)
    if kind == 0:
        return "".join(generator.choice(string.printable) for _ in range(generator.randrange(80)))
    if kind == 1:
        return generator.randbytes(generator.randrange(80))
    if kind == 2:
        text = json.dumps(message)
        at = generator.randrange(len(text))
        return (
            text[:at] + generator.choice(["", "}", "{", "\\", '"', "e9", "NaN"]) + text[at + generator.randrange(3) :]
        )
    targets = [message, message["setting"], message["setting"]["model"], message["setting"]["start"], message["clock"]]
    for _ in range(generator.randrange(1, 3)):
        target = generator.choice(targets)
        key = generator.choice(
            [*target, "placed", "appended", "value", "mask", "norm", "frozen", "heads", "evil", "before"]
        )
        target[key] = generator.choice(weird)
    if kind == 5:
        message["type"] = generator.choice(["attention", "cancel", "ping", "predict", "", "simulate"])
        message["frame"] = generator.choice(weird)
    return json.dumps(message)


def test_thousands_of_malformed_messages_are_answered_and_forgotten(server):
    generator = random.Random(0)
    with open_socket(server) as page:
        assert json.loads(page.recv())["type"] == "hello"

        def batch(count):
            for _ in range(count):
                page.send(fuzzed(generator))
            page.send(json.dumps({"type": "ping"}))
            while True:
                message = page.recv(timeout=PATIENCE)
                if isinstance(message, str) and json.loads(message)["type"] == "pong":
                    return

        batch(500)
        before = server.memory()
        for _ in range(6):
            batch(500)
        growth = server.memory() - before
        print(f"\nmemory of the server after 3000 more malformed messages: {growth:+.1f} MiB")
        assert growth < 40
        page.send(json.dumps({**SIMULATE, "run": 77}))
        assert _ends(page, 77)


def _ends(page, run):
    """True when the run with this number comes to its end."""
    for _ in range(5000):
        message = page.recv(timeout=PATIENCE)
        if isinstance(message, str):
            data = json.loads(message)
            if data.get("run") == run and data["type"] in ("end", "error"):
                return data["type"] == "end"
    return False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"setting": {**SETTING, "start": {"tokens": 10**9}}}, "up to 2000 tokens"),
        ({"clock": {"until": 1e300}}, "horizon must be at most"),
        ({"setting": {**SETTING, "model": {"dim": 2, "beta": 1, "value": [[1, 2]]}}}, "must be a 2 x 2 matrix"),
        ({"setting": {**SETTING, "model": {"dim": 2, "beta": 1, "value": [["a", 1], [1, 1]]}}}, "value"),
        ({"panel": 7}, "panel must be"),
        ({"type": "open"}, "type must be one of"),
    ],
)
def test_bad_requests_are_answered_with_a_sentence(server, change, words):
    with open_socket(server) as page:
        page.recv()
        page.send(json.dumps({**SIMULATE, **change}))
        reply = json.loads(page.recv(timeout=PATIENCE))
        assert reply["type"] == "error"
        assert words in reply["message"]


def test_an_oversized_message_ends_only_its_own_connection(server):
    with open_socket(server) as other:
        other.recv()
        with open_socket(server) as page:
            page.recv()
            with contextlib.suppress(ConnectionClosed):
                page.send("x" * (2 * limits.MESSAGE_BYTES))
                page.recv(timeout=PATIENCE)
            with pytest.raises(ConnectionClosed):
                page.recv(timeout=PATIENCE)
        other.send(json.dumps({"type": "ping"}))
        assert json.loads(other.recv(timeout=PATIENCE))["type"] == "pong"
    body = b"[" * (2 * limits.MESSAGE_BYTES)
    headers = ours(server, ("Origin", f"http://{server.host}"), ("Content-Type", "application/json"))
    with contextlib.suppress(ConnectionError):
        response, _ = request(server, "POST", "/python", headers, body)
        assert response.status == 422
    assert request(server, headers=ours(server))[0].status == 200


# --------------------------------------------------------------------------------------------------------- many pages


def test_fifty_connections_are_served_or_refused_politely(server):
    def visit(number):
        with open_socket(server, open_timeout=PATIENCE) as page:
            first = json.loads(page.recv(timeout=PATIENCE))
            if first["type"] == "full":
                return "full"
            page.send(json.dumps({**SIMULATE, "run": number}))
            barrier_reached = _ends(page, number)
            return "served" if barrier_reached else "failed"

    with contextlib.ExitStack() as stack:
        # Thirty pages that stay open and say nothing, then fifty at once.
        for _ in range(limits.CONNECTIONS - 2):
            stack.enter_context(open_socket(server)).recv(timeout=PATIENCE)
        with ThreadPoolExecutor(50) as threads:
            results = list(threads.map(visit, range(50)))
    assert set(results) <= {"served", "full"}
    assert "served" in results
    assert "full" in results
    with ThreadPoolExecutor(20) as threads:
        assert set(threads.map(visit, range(20))) == {"served"}


def test_a_new_setting_cancels_the_old_run(server):
    long = {"model": {"dim": 3, "beta": 200.0, "norm": {"kind": "peri_ln"}}, "start": {"tokens": 1500}}
    with open_socket(server) as page:
        page.recv()
        page.send(json.dumps({**SIMULATE, "run": 1, "setting": long, "clock": {"until": 1e5}}))
        page.send(json.dumps({**SIMULATE, "run": 2}))
        seen = []
        while True:
            message = page.recv(timeout=PATIENCE)
            if isinstance(message, str):
                data = json.loads(message)
                seen.append((data.get("run"), data["type"]))
                if seen[-1] == (2, "end"):
                    break
        assert (1, "end") not in seen


def test_a_page_that_goes_away_frees_its_worker(server):
    long = {"model": {"dim": 3, "beta": 200.0, "norm": {"kind": "peri_ln"}}, "start": {"tokens": 1500}}
    for run in range(2 * server.workers):
        with open_socket(server) as page:
            page.recv()
            page.send(json.dumps({**SIMULATE, "run": run, "setting": long, "clock": {"until": 1e5}}))
            page.recv(timeout=PATIENCE)
    with open_socket(server) as page:
        page.recv()
        page.send(json.dumps({**SIMULATE, "run": 9}))
        assert _ends(page, 9)
