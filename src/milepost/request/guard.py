"""Which addresses a request may reach: public ones, and those that an operator allowed (H-94).

A URL comes from outside, so its spelling does not count, but where the connection goes: a name is
resolved once, every address is judged, and the connection is made to the very addresses that were
judged. A second answer of the name server (DNS rebinding) is never asked for.
"""

import asyncio
import base64
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from urllib.parse import quote, unquote, urlsplit

import msgspec

from milepost.errors import Invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]

PORTS = (80, 443, 8080, 8443)
"""Where public servers speak HTTP; anything else has to be allowed."""
SCHEMES = {"http": 80, "https": 443}
FINE_SECONDS = 30.0
FINE_MOST = 10_000
URL_LIMIT = 8_000
HOST_LIMIT = 253
PORT_MOST = 65_535

_NO_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # public by its number, and a cloud's own service by its use
    )
)
_V6 = ipaddress.IPv6Network("2000::/3")
"""All that is routed; mapped, NAT64, local and link addresses lie outside."""
_NO_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")  # tunnels and examples
)
_ISATAP = (0x00005EFE, 0x02005EFE)
_WORDS = 0xFFFF_FFFF

_ASCII = bytes(range(128))
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_-]+)*\.?")
_NUMBER = re.compile(r"(?:.*\.)?(?:0x[0-9a-f]*|[0-9]+)\.?")
_ENTRY = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>[0-9]+))?")


class Refused(Invalid):
    """An address that no request may reach; nothing was sent."""

    code = "guarded"


class HttpUrl(msgspec.Struct, frozen=True):
    """A URL taken apart, once: the same parts are judged and sent."""

    scheme: str
    host: str
    port: int
    path: str
    credentials: str | None = None

    @property
    def origin(self) -> tuple[str, str, int]:
        """The server; credentials for one are not sent to another."""
        return (self.scheme, self.host, self.port)

    @property
    def authority(self) -> str:
        """The host as its header says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == SCHEMES[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The URL for people: without credentials and without its query."""
        return f"{self.scheme}://{self.authority}{self.path.partition('?')[0]}"


def parse(url: str) -> HttpUrl:
    """Take a URL apart, or raise `Refused` saying what is wrong with it; never repeats it."""
    if not isinstance(url, str) or len(url) > URL_LIMIT:
        raise Refused(f"a URL is a text of at most {URL_LIMIT:,} characters")
    if any(character <= " " or character in "\\\x7f" for character in url):
        raise Refused("a URL holds no spaces, backslashes or control characters: encode them")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Refused("the URL cannot be read; expected https://host/path") from None
    scheme = parts.scheme
    if scheme not in SCHEMES:
        raise Refused(f"a request goes to http:// or https://, not {scheme[:20] or 'nothing'}")
    if not host:
        raise Refused("the URL names no host; expected https://host/path")
    if port == 0:
        raise Refused("port 0 is no port")
    try:
        # All of ASCII is as it was; other characters are percent-encoded.
        path = quote(parts.path or "/", safe=_ASCII)
        query = quote(parts.query, safe=_ASCII)
        credentials = _credentials(parts.username, parts.password)
    except UnicodeError:
        raise Refused("the URL holds a lone surrogate, which is no text") from None
    whole = f"{path}?{query}" if query else path
    return HttpUrl(scheme, _host(host), port or SCHEMES[scheme], whole, credentials)


def _credentials(user: str | None, password: str | None) -> str | None:
    if user is None and password is None:
        return None
    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _host(host: str) -> str:
    """Spell a host as the resolver and the server will read it."""
    if ":" in host:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            raise Refused("the URL's host is no IPv6 address") from None
        if address.scope_id is not None:
            raise Refused("an address with a zone reaches this machine's own links only")
        return str(address)
    try:
        name = host.encode("idna").decode().lower() if not host.isascii() else host.lower()
    except UnicodeError:
        raise Refused("the URL's host is no name") from None
    if not _NAME.fullmatch(name):
        raise Refused("the URL's host is no name: letters, digits, dots and dashes are expected")
    if _NUMBER.fullmatch(name):
        return _literal_v4(name.removesuffix("."))
    return name


def _literal_v4(host: str) -> str:
    """Read a number as the operating system would: decimal, octal, hexadecimal, short."""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        raise Refused("the URL's host ends in a number and is no IPv4 address") from None


class AllowRule(msgspec.Struct, frozen=True):
    """A network or a name that is allowed, on one port or on all."""

    network: Network | None
    name: str | None
    port: int | None

    @classmethod
    def read(cls, text: str) -> "AllowRule":
        """Read an entry of an allow-list, or raise `Invalid` with an example."""
        with suppress(ValueError):
            return cls(ipaddress.ip_network(text, strict=False), None, None)
        match = _ENTRY.fullmatch(text)
        port = int(match["port"]) if match and match["port"] else None
        if match is None or (port is not None and not 0 < port <= PORT_MOST):
            raise Invalid(f"request_allow: {text!r} is no address, network, host or host:port")
        named = match["v6"] or match["host"]
        with suppress(ValueError):
            return cls(ipaddress.ip_network(named, strict=False), None, port)
        return cls(None, named.lower().removesuffix("."), port)

    def admits(self, host: str, address: Address, port: int) -> bool:
        """Tell whether it lets this connection through."""
        if self.port is not None and self.port != port:
            return False
        if self.network is not None:
            return address.version == self.network.version and address in self.network
        return host_matches(host.removesuffix("."), self.name or "")


def host_matches(host: str, pattern: str) -> bool:
    """Tell whether a host is the one named, or, with `*.`, one under it."""
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and len(host) > len(pattern) - 1
    return host == pattern


class AddressGuard:
    """Says where a connection may go."""

    def __init__(
        self,
        allow: str | Iterable[str] = "",
        *,
        ports: Iterable[int] = PORTS,
        resolve: Resolve | None = None,
    ) -> None:
        """Take the addresses allowed besides public ones, and the ports of public ones."""
        words = re.split(r"[,\s]+", allow) if isinstance(allow, str) else allow
        self._allowed = tuple(AllowRule.read(word) for word in words if word)
        self._ports = frozenset(ports)
        self._resolve = resolve or _resolved
        self._fine: dict[tuple[str, int], float] = {}

    async def check(self, host: str, port: int) -> None:
        """Refuse a host before anything is noted or sent; a good answer is believed for a while.

        It saves the way to a name server, and decides nothing: each connection is judged anew.
        """
        now = asyncio.get_running_loop().time()
        if self._fine.get((host, port), -FINE_SECONDS) + FINE_SECONDS > now:
            return
        await self.addresses(host, port)
        if len(self._fine) >= FINE_MOST:
            self._fine.clear()
        self._fine[host, port] = now

    async def addresses(self, host: str, port: int) -> list[str]:
        """Resolve a host, judge every address, and name those to connect to, or raise `Refused`.

        Where some are allowed by name or number, only those are used; otherwise all must be public.
        """
        try:
            texts = [str(ipaddress.ip_address(host))]
        except ValueError:
            texts = await self._resolve(host, port)
        found = [_address(text) for text in texts]
        if not found:
            raise OSError(f"{host} has no address")
        chosen = [a for a in found if any(e.admits(host, a, port) for e in self._allowed)]
        if not chosen:
            self._check_public(host, port, found)
            chosen = found
        return list(dict.fromkeys(str(address) for address in chosen))

    def _check_public(self, host: str, port: int, found: list[Address]) -> None:
        if any(not is_public(address) for address in found):
            raise Refused(
                f"{host} is, or leads to, an address that is not public; if it is meant, allow it "
                "by MILEPOST_REQUEST_ALLOW"
            )
        if port not in self._ports:
            known = ", ".join(map(str, sorted(self._ports)))
            raise Refused(
                f"port {port} of {host} is not among those that a request may reach ({known}); "
                f"if it is meant, allow {host}:{port} by MILEPOST_REQUEST_ALLOW"
            )


def _address(text: str) -> Address:
    """Read an address; an IPv4 address mapped into IPv6 is judged as IPv4."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_public(address: Address) -> bool:
    """Tell whether an address is one of the internet at large."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NO_V4)
    if address not in _V6 or any(address in network for network in _NO_V6):
        return False
    low = int(address)
    if low >> 32 & _WORDS in _ISATAP:
        return is_public(ipaddress.IPv4Address(low & _WORDS))
    return True


async def _resolved(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[4][0]) for place in found]
