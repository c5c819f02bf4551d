"""Hostile clients of a service, by bare sockets: `attack.py HOST PORT [ADMIN OWNER]`; with keys, clients who have none, or not that one.

Each attack says what is expected. Nothing may be answered with 500 or more, but for 503 with a time to come again; nothing may keep others
from their answers; and the process must live at the end."""

import json
import socket
import sys
import threading
import time

HOST, PORT = sys.argv[1], int(sys.argv[2])
KEYS = sys.argv[3:]
OWNER = "/api/v1/stats/plays/total?owner_id=1"
# How long others may wait for an answer meanwhile, in seconds.
ANSWER_MAX_S = 5.0
faults: list[str] = []


def connected(timeout_s: float = 15.0) -> socket.socket:
    one = socket.create_connection((HOST, PORT), timeout=timeout_s)
    one.settimeout(timeout_s)
    return one


def answer(one: socket.socket) -> tuple[int, bytes]:
    """The status and the bytes of what is answered until the connection ends or is silent; 0 where nothing is."""
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


def asked(data: bytes, timeout_s: float = 15.0) -> tuple[int, bytes]:
    with connected(timeout_s) as one:
        try:
            one.sendall(data)
        except ConnectionError:
            # It may have been refused before all was sent.
            pass
        return answer(one)


def get(path: bytes, more: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + more + b"Connection: close\r\n\r\n"


def bearer(key: str) -> bytes:
    return b"Authorization: Bearer " + key.encode() + b"\r\n"


def expect(what: str, found: int, allowed: range | tuple[int, ...]) -> None:
    if found not in allowed:
        faults.append(f"{what}: {found}")


def is_well(what: str) -> None:
    """Others are answered, and soon."""
    begun = time.monotonic()
    try:
        status, _ = asked(get(OWNER.encode(), bearer(KEYS[0]) if KEYS else b""))
        live, _ = asked(get(b"/livez"))
    except OSError as error:
        faults.append(f"{what}: others are not answered: {error}")
        return
    took = time.monotonic() - begun
    if (status, live) != (200, 200) or took > ANSWER_MAX_S:
        faults.append(f"{what}: others are answered {status} and {live} after {took:.1f} s")


# Nothing at all is an answer to what is no request: the connection ends.
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
        status, _ = asked(get(path))
        shown = path[:80].decode(errors="replace")
        # Redirects lead within the service; what is only strange may be answered.
        expect(f"path {shown}", status, (0, *range(200, 500)))
        if b"passwd" in path and status == 200:
            faults.append(f"path {shown}: {status}")


def heads() -> None:
    for what, data in [
        ("10,000 headers", get(b"/livez", b"".join(b"x-%d: 1\r\n" % n for n in range(10_000)))),
        ("a header of 1 MB", get(b"/livez", b"x: " + b"a" * 1_000_000 + b"\r\n")),
        ("a header without an end", b"GET /livez HTTP/1.1\r\nx: " + b"a" * 4_000_000),
        ("no host", b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n"),
        ("two hosts", get(b"/", b"Host: evil.example.org\r\n")),
        ("a name that is none", get(b"/livez", b"a b: c\r\n")),
        ("a line that is folded", get(b"/livez", b"x: a\r\n b\r\n")),
        ("zero bytes", get(b"/livez", b"x: \0\r\n")),
        ("two lengths", b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 30\r\n\r\nabc"),
        (
            "length and chunks",
            b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
        ),
        ("a length that is none", b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n"),
        ("a chunk that is none", b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"),
        ("another protocol", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500),
        ("no protocol", b"\r\n" * 10_000),
        ("another version", b"GET / HTTP/9.9\r\nHost: a\r\n\r\n"),
        ("HTTP/2 with garbage", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 20_000),
    ]:
        status, _ = asked(data, timeout_s=8.0)
        expect(what, status, (*REFUSED, 200))


def bodies() -> None:
    ingest = b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    status, _ = asked(ingest + b"Content-Length: 999999999999\r\n\r\n{}")
    expect("a body that says it is huge", status, (413,))
    chunk = b"10000\r\n" + b"a" * 65_536 + b"\r\n"
    status, _ = asked(ingest + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 1_200)
    expect("a body that is huge and does not say so", status, (0, 413))
    for what, body in [
        ("nesting", b"[" * 200_000),
        ("no UTF-8", b"\xff\xfe\xfd\n" * 1_000),
        ("zero bytes", b"\0" * 10_000),
        ("numbers", b'{"event_id":1e999,"owner_id":1e308,"track_id":-0.0}\n' * 100),
        ("one long text", b'{"event_id":"' + b"a" * 3_000_000 + b'"}'),
    ]:
        status, data = asked(ingest + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        expect(f"a body of {what}", status, (200, *range(400, 500)))
        if status == 200:
            told = json.loads(data.partition(b"\r\n\r\n")[2])
            if told["accepted"]:
                faults.append(f"a body of {what}: {told['accepted']} lines were taken")
    for path in [b"/api/v1/applications/1", b"/api/v1/applications/1/capacity-requests", b"/api/v1/boards/segments/ranks", b"/pipeline/dead-letters", b"/signin"]:
        for method in [b"POST", b"PATCH", b"PUT", b"DELETE"]:
            head = method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            for body in [b"", b"null", b"[]", b'{"a":', b"{}" * 1_000, b"\xff" * 100]:
                status, _ = asked(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                expect(f"{method.decode()} {path.decode()} {body[:10]!r}", status, range(200, 500))


def slow() -> None:
    """Clients that send a byte now and then, or read nothing, by the hundred: others are answered all the same, and they are let go."""
    held = []
    for n in range(200):
        one = connected()
        one.sendall(b"GET /livez HTT" if n % 2 else b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")
        held.append(one)
    for _ in range(50):
        # One that asks for much, and reads nothing of it.
        one = connected()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        try:
            one.sendall(get(b"/api/v1/reconciliations?limit=1000").replace(b"close", b"keep-alive") * 200)
        except OSError:
            pass
        held.append(one)
    is_well("250 slow clients")
    for one in held:
        one.close()


def flood() -> None:
    """Requests from many connections at once: each is answered, or refused with 429 or 503."""
    found: list[int] = []
    lock = threading.Lock()

    def ask() -> None:
        for _ in range(40):
            try:
                status, _ = asked(get(OWNER.encode()))
            except OSError:
                status = 0
            with lock:
                found.append(status)

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for status in sorted(set(found) - {200, 429, 503}):
        faults.append(f"a flood: {found.count(status)} of {len(found)} are answered {status}")


def credentials() -> None:
    """Who has no key, or not this one, is let in nowhere, whatever is sent in its place."""
    admin, owner = KEYS
    overview = b"/api/v1/overview"
    expect("the key of an administrator", asked(get(overview, bearer(admin)))[0], (200,))
    refused = (400, 401, 403, 429, 431)
    for what, more in [
        ("nothing", b""),
        ("an empty header", b"Authorization:\r\n"),
        ("no key", b"Authorization: Bearer\r\n"),
        ("another kind", b"Authorization: Basic " + admin.encode() + b"\r\n"),
        ("half of a key", bearer(admin[: len(admin) // 2])),
        ("a key with more", bearer(admin + "0")),
        ("a key in large letters", bearer(admin.upper())),
        ("two keys", bearer(owner) + bearer(admin)),
        ("two kinds of a key", bearer(owner) + b"X-API-Key: " + admin.encode() + b"\r\n"),
        ("no ASCII", b"Authorization: Bearer \xff\xfe\xc3\x28\r\n"),
        ("a long one", b"Authorization: Bearer " + b"a" * 60_000 + b"\r\n"),
        ("a broken other header", b"X-API-Key: \xff\r\n"),
        ("a cookie of no session", b"Cookie: backstitch_%d=aaaaaaaaaaaaaaaa.99999999999.%s\r\n" % (PORT, b"A" * 43)),
        ("a cookie that is garbage", b"Cookie: backstitch_%d=\xff\xfe;;==;\r\n" % PORT),
        ("many cookies", b"Cookie: " + b"a=b; " * 10_000 + b"\r\n"),
        ("who says that it is a proxy", b"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: https\r\n"),
        ("an owner's key", bearer(owner)),
    ]:
        expect(what, asked(get(overview, more))[0], refused)
    for path in [b"/api/v1/stats/plays/total?owner_id=2", b"/api/v1/stats/plays/total?owner_id=1&owner_id=2", b"/owners/2", b"/find?what=track&id=a"]:
        expect(f"an owner's key and {path.decode()}", asked(get(path, bearer(owner)))[0], (400, 403))
    expect("an owner's own plays", asked(get(OWNER.encode(), bearer(owner)))[0], (200,))
    ingest = b"POST /api/v1/ingest/plays HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 999999999\r\n"
    expect("a huge body of who may not", asked(ingest + bearer(owner) + b"\r\n{}")[0], (403, 413))


for attack in (credentials,) if KEYS else (paths, heads, bodies, slow, flood):
    attack()
    is_well(attack.__name__)
    print(f"{attack.__name__}: {'faults' if faults else 'no fault'} so far", flush=True)
for fault in faults:
    print(f"fault: {fault}", file=sys.stderr)
sys.exit(bool(faults))
