"""Where a request may go (H-94): a hundred tricks, and a canary that none of them reaches."""
# ruff: noqa: E501, RUF001 - the tricks are made of such characters

import asyncio
import ipaddress
import socket
from typing import Self

import pytest

from milepost.errors import Invalid
from milepost.request.declaration import WireRequest
from milepost.request.guard import AddressGuard, Refused, is_public, parse
from milepost.request.wire import Wire

# Names that an attacker's name server answers for.
NAMES = {
    "inside.example": ["127.0.0.1"],
    "inside6.example": ["::1"],
    "mixed.example": ["93.184.216.34", "127.0.0.1"],
    "mixed6.example": ["2606:2800:220:1:248:1893:25c8:1946", "::1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "nat64.example": ["64:ff9b::7f00:1"],
    "sixto4.example": ["2002:7f00:1::"],
    "private.example": ["10.0.0.1"],
    "metadata.example": ["169.254.169.254"],
    "cgnat.example": ["100.64.0.1"],
    "zone.example": ["fe80::1%lo"],
    "unspecified.example": ["0.0.0.0"],
    "localtest.me": ["127.0.0.1"],
    "127.0.0.1.nip.io": ["127.0.0.1"],
    "localhost": ["127.0.0.1", "::1"],
    "localhost.": ["127.0.0.1"],
    "ip6-localhost": ["::1"],
}

LOOPBACK = [
    "127.0.0.1", "127.1", "127.0.1", "127.127.127.127", "127.255.255.255", "2130706433", "017700000001",
    "0177.0.0.1", "0177.0.0.01", "0x7f000001", "0x7f.0x0.0x0.0x1", "0x7f.1", "0X7F.0.0.1", "0x7F000001",
    "00000177.0.0.1", "0", "0.0.0.0", "0x0", "00", "127.0.0.1.", "127.000.000.001",
    "１２７.０.０.１", "127。0。0。1", "127．0．0．1", "127｡0｡0｡1", "①②⑦.⓪.⓪.①", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "LOCALHOST",
    "localhost", "localhost.", "ip6-localhost", "localtest.me", "127.0.0.1.nip.io", "inside.example",
    "INSIDE.EXAMPLE", "inside6.example", "mixed.example", "mixed6.example", "mapped.example",
    "nat64.example", "sixto4.example", "zone.example", "unspecified.example", "ｉｎｓｉｄｅ.example",
]  # fmt: skip
LITERALS_V6 = [
    "::1", "0:0:0:0:0:0:0:1", "::", "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:0:127.0.0.1", "::127.0.0.1",
    "64:ff9b::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:7f00:0001::1",
    "2001:0:4136:e378:8000:63bf:80ff:fffe", "fe80::1", "fe80::1%25lo", "fe80::1%lo", "fc00::1", "fd00:ec2::254",
    "fec0::1", "ff02::1", "2001:db8::1", "100::1", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe",
    "2606:4700::5efe:7f00:1", "2606:4700::200:5efe:10.0.0.1", "5f00::1", "3fff::1", "2001:20::1",
]  # fmt: skip
OTHERS = [
    "169.254.169.254", "0xa9fea9fe", "2852039166", "025177524776", "169.254.43518", "metadata.example",
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "0300.0250.1.1", "100.64.0.1", "100.100.100.200",
    "192.0.0.192", "168.63.129.16", "198.18.0.1", "192.0.2.1", "203.0.113.9", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "private.example", "cgnat.example", "192.88.99.1",
]  # fmt: skip
SPELLED = [
    "http://public.example@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}#@public.example/",
    "http://127.0.0.1:{port}?@public.example/",
    "http://public.example:80@127.0.0.1:{port}/",
    "http:\\\\127.0.0.1:{port}/",
    "http://public.example\\@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@public.example/",
    "http://%31%32%37.0.0.1:{port}/",
    "http://127.0.0.1%00.public.example:{port}/",
    "http://127.0.0.1\t:{port}/",
    "http://127.0.0.1:{port}/\r\nHost: public.example",
    "http:///127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/",
    "//127.0.0.1:{port}/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_GET",
    "ftp://127.0.0.1:{port}/",
    "dict://127.0.0.1:{port}/",
    "unix:/var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
    "ws://127.0.0.1:{port}/",
    "data:text/plain,hello",
    "http://[127.0.0.1]:{port}/",
    "http://[::1%2525lo]:{port}/",
    "http://.127.0.0.1:{port}/",
    "http://127.0.0.1..:{port}/",
    "http://256.0.0.1:{port}/",
    "http://127.0.0.1:0/",
    "http://127.0.0.1:99999/",
    "http://127.0.0.1:{port}/\ud800",
    "http://\ud800@127.0.0.1:{port}/",
]
TRICKS = [
    *(f"http://{host}:{{port}}/" for host in (*LOOPBACK, *OTHERS)),
    *(f"http://[{host}]:{{port}}/" for host in LITERALS_V6),
    *SPELLED,
]


async def resolve(host: str, port: int) -> list[str]:
    """Answer as the attacker's name server does; what it does not know, it does not know."""
    return NAMES.get(host) or NAMES[host.removesuffix(".")]


class Canary:
    """Counts who gets through to it, over IPv4 and IPv6."""

    def __init__(self) -> None:
        self.visits = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._visited, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


async def sent(url: str, guard: AddressGuard) -> int:
    wire = Wire(guard, connections=1)
    try:
        answer = await wire.send(
            WireRequest(method="GET", target=parse(url), headers={}, redirects=3)
        )
        return answer.status
    finally:
        await wire.close()


def test_there_are_more_than_a_hundred_tricks_and_none_twice():
    assert len(TRICKS) >= 100
    assert len(set(TRICKS)) == len(TRICKS)


async def test_h94_no_trick_reaches_an_address_that_is_not_public(subtests):
    for trick in TRICKS:
        with subtests.test(trick=ascii(trick)):
            async with Canary() as canary:
                guard = AddressGuard(ports=(80, canary.port), resolve=resolve)
                with pytest.raises(Refused):
                    await sent(trick.replace("{port}", str(canary.port)), guard)
                await asyncio.sleep(0)
                assert canary.visits == 0


async def test_the_canary_is_reached_where_it_is_allowed():
    """The tricks above fail for the guard's sake, and not because nothing listens there."""
    async with Canary() as canary:
        guard = AddressGuard("127.0.0.1", resolve=resolve)
        assert await sent(f"http://inside.example:{canary.port}/", guard) == 200
        assert await sent(f"http://0x7f.1:{canary.port}/", guard) == 200
        assert canary.visits == 2


async def test_a_second_answer_of_the_name_server_is_never_asked_for():
    """DNS rebinding: public when it is judged, inside when it is connected to."""
    answers = [["127.0.0.1"], ["10.0.0.1"], ["127.0.0.1"]]
    asked = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return answers[len(asked) - 1]

    async with Canary() as canary:
        # Allowed by its number alone, so that one answer is good and the next is not.
        guard = AddressGuard("127.0.0.1", resolve=rebinding)
        assert await sent(f"http://rebind.example:{canary.port}/", guard) == 200
        assert asked == ["rebind.example"]
        with pytest.raises(Refused):
            await sent(f"http://rebind.example:{canary.port}/", guard)
        assert canary.visits == 1


async def test_of_several_addresses_only_the_allowed_ones_are_used():
    guard = AddressGuard("127.0.0.1", resolve=resolve)
    assert await guard.addresses("localhost", 9_000) == ["127.0.0.1"]
    assert await guard.addresses("mixed.example", 9_000) == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("allow", "host", "port", "passes"),
    [
        ("127.0.0.1", "127.0.0.1", 9_000, True),
        ("127.0.0.0/8", "127.9.9.9", 9_000, True),
        ("127.0.0.1:9000", "127.0.0.1", 9_000, True),
        ("127.0.0.1:9000", "127.0.0.1", 9_001, False),
        ("[::1]:9000", "::1", 9_000, True),
        ("::1", "::1", 1, True),
        ("10.0.0.0/8, inside.example:9000", "inside.example", 9_000, True),
        ("inside.example:9000", "inside.example", 9_001, False),
        ("*.example", "inside.example", 9_001, True),
        ("*.example", "127.0.0.1.nip.io", 9_001, False),
        ("inside.example", "metadata.example", 80, False),
        ("10.0.0.0/8\n192.168.0.0/16", "private.example", 80, True),
    ],
)
async def test_what_an_allow_list_lets_through(allow, host, port, passes):
    guard = AddressGuard(allow, resolve=resolve)
    if passes:
        assert await guard.addresses(host, port)
    else:
        with pytest.raises(Refused, match="MILEPOST_REQUEST_ALLOW"):
            await guard.addresses(host, port)


@pytest.mark.parametrize("allow", ["127.0.0.1:0", "a:b", "http://127.0.0.1", "[::1", "host:99999"])
def test_an_allow_list_that_cannot_be_meant_is_refused(allow):
    with pytest.raises(Invalid, match="request_allow"):
        AddressGuard(allow)


@pytest.mark.parametrize("port", [22, 25, 3306, 5432, 6379, 11211])
async def test_public_hosts_are_reached_on_ports_that_speak_http(port):
    async def public(host: str, port: int) -> list[str]:
        return ["93.184.216.34"]

    guard = AddressGuard(resolve=public)
    assert await guard.addresses("public.example", 443) == ["93.184.216.34"]
    with pytest.raises(Refused, match=f"public.example:{port}"):
        await guard.addresses("public.example", port)


@pytest.mark.parametrize("text", ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111", "1.0.0.1"])
def test_public_addresses_are_public(text):
    assert is_public(ipaddress.ip_address(text))


def test_a_url_is_taken_apart_once():
    target = parse("https://user:p%40ss@Bücher.example:8443/a/ä?b=ü#c")
    assert target.host == "xn--bcher-kva.example"
    assert target.path == "/a/%C3%A4?b=%C3%BC"
    assert target.authority == "xn--bcher-kva.example:8443"
    assert target.credentials == "Basic dXNlcjpwQHNz"
    assert target.shown == "https://xn--bcher-kva.example:8443/a/%C3%A4"


def test_an_error_never_repeats_the_url():
    for url in ("http://user:hunter2@", "gopher://user:hunter2@h", "http://user:hunter2@h :1"):
        with pytest.raises(Refused) as refused:
            parse(url)
        assert "hunter2" not in str(refused.value)


async def test_a_name_that_is_not_found_is_no_refusal():
    async def nowhere(host: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(OSError, match="not known"):
        await AddressGuard(resolve=nowhere).addresses("nowhere.example", 80)
