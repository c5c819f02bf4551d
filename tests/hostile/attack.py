"""Attacks a service through raw sockets: `attack.py HOST PORT [ADMIN OWNER]`. With keys, attacks authentication instead.

Each attack states the allowed statuses. No response may be a server error except 503 with Retry-After, other clients must be served
meanwhile, and the process must be alive at the end."""

import json
import socket
import sys
import threading
import time

HOST, PORT = sys.argv[1], int(sys.argv[2])
KEYS = sys.argv[3:]
OWNER = "/api/v1/stats/plays/total?owner_id=1"
# Limit for responses to other clients during an attack, in seconds.
RESPONSE_MAX_S = 5.0
faults: list[str] = []


def connect(timeout_s: float = 15.0) -> socket.socket:
    one = socket.create_connection((HOST, PORT), timeout=timeout_s)
    one.settimeout(timeout_s)
    return one


def read_response(one: socket.socket) -> tuple[int, bytes]:
    """Reads a response until it is complete, the connection ends, or a timeout. Returns the status, 0 without one, and the bytes."""
    data = b""
    try:
        while part := one.recv(65_536):
            data += part
            head, _, body = data.partition(b"\r\n\r\n")
            if b"\r\n\r\n" in data and length(head) is not None and len(body) >= length(head):
                break
    except (TimeoutError, ConnectionError):
        pass
    status = data.split(b" ", 2)[1:2]
    return (int(status[0]) if status and status[0].isdigit() else 0), data


def length(head: bytes) -> int | None:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return None


def send(data: bytes, timeout_s: float = 15.0) -> tuple[int, bytes]:
    with connect(timeout_s) as one:
        try:
            one.sendall(data)
        except ConnectionError:
            # The server may reject a request before it has read all of it.
            pass
        return read_response(one)


def get(path: bytes, more: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + more + b"Connection: close\r\n\r\n"


def bearer(key: str) -> bytes:
    return b"Authorization: Bearer " + key.encode() + b"\r\n"


def expect(what: str, found: int, allowed: range | tuple[int, ...]) -> None:
    if found not in allowed:
        faults.append(f"{what}: {found}")


def check_service(what: str) -> None:
    """Checks that other clients are served in time."""
    begun = time.monotonic()
    try:
        status, _ = send(get(OWNER.encode(), bearer(KEYS[0]) if KEYS else b""))
        live, _ = send(get(b"/livez"))
    except OSError as error:
        faults.append(f"{what}: other clients are not served: {error}")
        return
    elapsed_s = time.monotonic() - begun
    if (status, live) != (200, 200) or elapsed_s > RESPONSE_MAX_S:
        faults.append(f"{what}: other clients get {status} and {live} after {elapsed_s:.1f} s")


# 0: the server closed the connection without a response, as it does for bytes that are no request.
REFUSED = (0, *range(400, 500))


def paths() -> None:
    for path in [
        b"/../../etc/passwd",
        b"/assets/../Cargo.toml",
        b"/assets/%2e%2e/%2e%2e/etc/passwd",
        b"/assets/..%2f..%2fetc%2fpasswd",
        b"/assets/%00",
        b"/docs/..%5c..%5c",
        b"//etc/passwd",
        b"/%",
        b"/%zz",
        b"/\xff\xfe",
        b"/owners/%ff%fe",
        b"/owners/99999999999999999999999999",
        b"/owners/-0",
        b"/owners/1%00",
        b"/segments/1?page=18446744073709551616",
        b"/api/v1/stats/plays/total?owner_id=1&owner_id=2",
        b"/api/v1/stats/plays/total?owner_id=%F0%9F%98%80",
        b"/api/v1/stats/plays/series?owner_id=1&from=-999999999-01-01&to=999999999-01-01&interval=hour",
        b"/api/v1/stats/plays/total?owner_id=1&tz=../../../etc/passwd",
        b"/api/v1/stats/..%2f..%2f/total?owner_id=1",
        b"/api/v1/dead-letters?cursor=" + b"A" * 4_000,
        b"/api/v1/dead-letters/%2e%2e%2f%2e%2e",
        b"/" + b"a" * 60_000,
        b"/?" + b"a=b&" * 15_000,
        b"*",
        b"http://evil.example.org/livez",
    ]:
        status, _ = send(get(path))
        shown = path[:80].decode(errors="replace")
        # Redirects stay within the service; unusual but valid paths may succeed.
        expect(f"path {shown}", status, (0, *range(200, 500)))
        if b"passwd" in path and status == 200:
            faults.append(f"path {shown}: {status}")


def heads() -> None:
    for what, data in [
        ("10,000 headers", get(b"/livez", b"".join(b"x-%d: 1\r\n" % n for n in range(10_000)))),
        ("a header of 1 MB", get(b"/livez", b"x: " + b"a" * 1_000_000 + b"\r\n")),
        ("an endless header", b"GET /livez HTTP/1.1\r\nx: " + b"a" * 4_000_000),
        ("no host", b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n"),
        ("two hosts", get(b"/", b"Host: evil.example.org\r\n")),
        ("an invalid header name", get(b"/livez", b"a b: c\r\n")),
        ("a folded header", get(b"/livez", b"x: a\r\n b\r\n")),
        ("zero bytes", get(b"/livez", b"x: \0\r\n")),
        ("two lengths", b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 30\r\n\r\nabc"),
        (
            "length and chunks",
            b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
        ),
        ("an invalid length", b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n"),
        ("an invalid chunk", b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"),
        ("another protocol", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500),
        ("no protocol", b"\r\n" * 10_000),
        ("another version", b"GET / HTTP/9.9\r\nHost: a\r\n\r\n"),
        ("HTTP/2 with garbage", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 20_000),
    ]:
        status, _ = send(data, timeout_s=8.0)
        expect(what, status, (*REFUSED, 200))


def bodies() -> None:
    ingest = b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    status, _ = send(ingest + b"Content-Length: 999999999999\r\n\r\n{}")
    expect("a huge body with its length", status, (413,))
    chunk = b"10000\r\n" + b"a" * 65_536 + b"\r\n"
    status, _ = send(ingest + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 1_200)
    expect("a huge body in chunks", status, (0, 413))
    for what, body in [
        ("nesting", b"[" * 200_000),
        ("invalid UTF-8", b"\xff\xfe\xfd\n" * 1_000),
        ("zero bytes", b"\0" * 10_000),
        ("numbers", b'{"event_id":1e999,"owner_id":1e308,"track_id":-0.0}\n' * 100),
        ("one long string", b'{"event_id":"' + b"a" * 3_000_000 + b'"}'),
    ]:
        status, data = send(ingest + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        expect(f"a body of {what}", status, (200, *range(400, 500)))
        if status == 200:
            report = json.loads(data.partition(b"\r\n\r\n")[2])
            if report["accepted"]:
                faults.append(f"a body of {what}: {report['accepted']} lines were accepted")
    for path in [b"/api/v1/applications/1", b"/api/v1/applications/1/capacity-requests", b"/api/v1/boards/segments/ranks", b"/pipeline/dead-letters", b"/signin"]:
        for method in [b"POST", b"PATCH", b"PUT", b"DELETE"]:
            head = method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            for body in [b"", b"null", b"[]", b'{"a":', b"{}" * 1_000, b"\xff" * 100]:
                status, _ = send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                expect(f"{method.decode()} {path.decode()} {body[:10]!r}", status, range(200, 500))


def slow() -> None:
    """Hundreds of clients that send few bytes or read nothing must not keep other clients from being served."""
    connections = []
    for n in range(200):
        one = connect()
        one.sendall(b"GET /livez HTT" if n % 2 else b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")
        connections.append(one)
    for _ in range(50):
        # A client that requests large responses and reads nothing.
        one = connect()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        try:
            one.sendall(get(b"/api/v1/reconciliations?limit=1000").replace(b"close", b"keep-alive") * 200)
        except OSError:
            pass
        connections.append(one)
    check_service("250 slow clients")
    for one in connections:
        one.close()


def flood() -> None:
    """Concurrent requests on many connections: each succeeds, or is rejected with 429 or 503."""
    statuses: list[int] = []
    lock = threading.Lock()

    def send_requests() -> None:
        for _ in range(40):
            try:
                status, _ = send(get(OWNER.encode()))
            except OSError:
                status = 0
            with lock:
                statuses.append(status)

    threads = [threading.Thread(target=send_requests) for _ in range(40)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for status in sorted(set(statuses) - {200, 429, 503}):
        faults.append(f"a flood: {statuses.count(status)} of {len(statuses)} responses have status {status}")


def credentials() -> None:
    """Requests without the right key are rejected, whatever they send instead."""
    admin, owner = KEYS
    overview = b"/api/v1/overview"
    expect("the key of an administrator", send(get(overview, bearer(admin)))[0], (200,))
    refused = (400, 401, 403, 429, 431)
    for what, more in [
        ("nothing", b""),
        ("an empty header", b"Authorization:\r\n"),
        ("an empty key", b"Authorization: Bearer\r\n"),
        ("another scheme", b"Authorization: Basic " + admin.encode() + b"\r\n"),
        ("half of a key", bearer(admin[: len(admin) // 2])),
        ("a longer key", bearer(admin + "0")),
        ("a key in upper case", bearer(admin.upper())),
        ("two keys", bearer(owner) + bearer(admin)),
        ("keys in two headers", bearer(owner) + b"X-API-Key: " + admin.encode() + b"\r\n"),
        ("bytes that are not ASCII", b"Authorization: Bearer \xff\xfe\xc3\x28\r\n"),
        ("a long key", b"Authorization: Bearer " + b"a" * 60_000 + b"\r\n"),
        ("an invalid X-API-Key", b"X-API-Key: \xff\r\n"),
        ("a forged session cookie", b"Cookie: backstitch_%d=aaaaaaaaaaaaaaaa.99999999999.%s\r\n" % (PORT, b"A" * 43)),
        ("a garbage cookie", b"Cookie: backstitch_%d=\xff\xfe;;==;\r\n" % PORT),
        ("many cookies", b"Cookie: " + b"a=b; " * 10_000 + b"\r\n"),
        ("headers of a proxy", b"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: https\r\n"),
        ("an owner's key", bearer(owner)),
    ]:
        expect(what, send(get(overview, more))[0], refused)
    for path in [b"/api/v1/stats/plays/total?owner_id=2", b"/api/v1/stats/plays/total?owner_id=1&owner_id=2", b"/owners/2", b"/find?what=track&id=a"]:
        expect(f"an owner's key and {path.decode()}", send(get(path, bearer(owner)))[0], (400, 403))
    expect("an owner's own plays", send(get(OWNER.encode(), bearer(owner)))[0], (200,))
    ingest = b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 999999999\r\n"
    expect("a huge body without permission", send(ingest + bearer(owner) + b"\r\n{}")[0], (403, 413))


for attack in (credentials,) if KEYS else (paths, heads, bodies, slow, flood):
    attack()
    check_service(attack.__name__)
    print(f"{attack.__name__}: {len(faults)} faults so far", flush=True)
for fault in faults:
    print(f"fault: {fault}", file=sys.stderr)
sys.exit(bool(faults))
