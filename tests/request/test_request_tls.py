"""TLS (H-94): a connection goes to a judged address, and is the named host's or nobody's."""

import ssl

import httpcore2
import pytest
from certificates import Authority
from remote import Remote, Says

import milepost as mp
from milepost.request import wire
from milepost.request.declaration import WireRequest
from milepost.request.guard import AddressGuard, Refused, parse
from milepost.request.wire import UNSENT, Wire

HERE = "127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def partners(authority) -> ssl.SSLContext:
    return authority.server("partner.example", "localhost")


@pytest.fixture
def secure(partners):
    with Remote(tls=partners) as made:
        yield made


async def sent(remote, host, *, trusted, names=None, redirects=0, path="/", port=None, times=1):
    """Send to a host by a name server of our own; give the answers."""
    known = {"partner.example": [HERE], "other.example": [HERE], **(names or {})}

    async def resolve(name: str, _: int) -> list[str]:
        return known[name]

    guard = AddressGuard(f"{HERE}:{remote.port}", resolve=resolve)
    way = Wire(guard, connections=5, trusted=trusted)
    hosts = [host] if isinstance(host, str) else host
    try:
        return [
            await way.send(
                WireRequest(
                    method="GET",
                    target=parse(f"https://{one}:{port or remote.port}{path}"),
                    headers={"X-Key": "for the partner"},
                    redirects=redirects,
                )
            )
            for one in hosts * times
        ]
    finally:
        await way.close()


async def test_a_pinned_address_is_verified_by_the_hosts_name(authority, secure):
    answers = await sent(secure, "partner.example", trusted=authority.trusted(), times=2)
    assert [answer.status for answer in answers] == [200, 200]
    assert secure.names == ["partner.example"]  # one connection, for the name and not the address
    assert {asked.headers["host"] for asked in secure.asked} == {f"partner.example:{secure.port}"}


@pytest.mark.parametrize("host", ["other.example", HERE, "partner.example."])
async def test_another_name_at_the_same_address_is_refused_before_anything_is_sent(
    authority, secure, host
):
    names = {"partner.example.": [HERE]}
    with pytest.raises(UNSENT, match=r"certificate|[Hh]ostname|mismatch"):
        await sent(secure, host, trusted=authority.trusted(), names=names)
    assert secure.asked == []


async def test_a_connection_of_one_name_is_not_used_for_another(authority, secure):
    with pytest.raises(UNSENT, match=r"other\.example"):
        await sent(secure, ["partner.example", "other.example"], trusted=authority.trusted())
    assert len(secure.asked) == 1


async def test_an_authority_that_nobody_knows_is_refused(tmp_path, secure):
    stranger = Authority(tmp_path)
    with pytest.raises(UNSENT, match="certificate"):
        await sent(secure, "partner.example", trusted=stranger.trusted())
    with pytest.raises(UNSENT, match="certificate"):  # nor do the world's know it
        await sent(secure, "partner.example", trusted=None)
    assert secure.asked == []


async def test_a_redirect_is_verified_by_its_own_name(authority, secure):
    secure.answers = [Says(302, headers={"Location": f"https://other.example:{secure.port}/x"})]
    with pytest.raises(httpcore2.ReadError, match=r"other\.example"):
        await sent(secure, "partner.example", trusted=authority.trusted(), redirects=3)
    assert [asked.headers["host"] for asked in secure.asked] == [f"partner.example:{secure.port}"]
    assert secure.names == ["partner.example", "other.example"]


async def test_a_redirect_to_a_host_with_a_certificate_of_its_own_is_followed(authority, secure):
    with Remote(tls=authority.server("other.example")) as other:
        secure.answers = [Says(302, headers={"Location": f"https://other.example:{other.port}/x"})]

        async def resolve(_: str, __: int) -> list[str]:
            return [HERE]

        way = Wire(AddressGuard(HERE, resolve=resolve), connections=5, trusted=authority.trusted())
        target = parse(f"https://partner.example:{secure.port}/")
        headers = {"X-Key": "private", "X-Plain": "plain"}
        asked = WireRequest(
            method="GET", target=target, headers=headers, private={"x-key"}, redirects=1
        )
        answer = await way.send(asked)
        await way.close()
        assert answer.status == 200
        assert (other.names, len(other.asked)) == (["other.example"], 1)
        assert "x-key" not in other.asked[0].headers
        assert other.asked[0].headers["x-plain"] == "plain"


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("http://partner.example:{port}/", "from https to http"),
        ("https://inside.example:{port}/", "not public"),
        ("https://169.254.169.254/", "not public"),
    ],
)
async def test_h94_a_redirect_is_judged_again(authority, secure, location, told):
    secure.answers = [Says(307, headers={"Location": location.format(port=secure.port)})]
    with pytest.raises(Refused, match=told):
        await sent(
            secure,
            "partner.example",
            trusted=authority.trusted(),
            names={"inside.example": ["10.0.0.7"]},
            redirects=3,
        )
    assert len(secure.asked) == 1


@pytest.fixture
def world(monkeypatch, authority):
    """Trust the test's authority as the machine trusts the world's."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    wire._trusted.cache_clear()
    yield
    wire._trusted.cache_clear()


@pytest.mark.usefixtures("world")
def test_h94_a_secret_goes_to_the_host_that_shows_its_certificate(
    tmp_path, authority, secure, monkeypatch
):
    monkeypatch.setenv("MILEPOST_SECRET_TOKEN", "s3cr3t-of-ours")
    with Remote(tls=authority.server("somebody.example")) as impostor:
        bound = f"token@localhost:{secure.port}, token@localhost:{impostor.port}"
        app = mp.App(
            f"sqlite:///{tmp_path}/a.db",
            request_allow=f"{HERE}, [::1]",
            request_secrets=bound,
        )
        key = {"headers": {"X-Key": "{secret:token}"}, "secrets": ["token"], "retries": 0}
        good = app.request("GET", f"https://localhost:{secure.port}/", **key)
        bad = app.request("GET", f"https://localhost:{impostor.port}/", **key)
        app.drain(timeout=20)
        assert good.refresh().state == "SUCCEEDED"
        assert secure.asked[0].headers["x-key"] == "s3cr3t-of-ours"
        assert (bad.refresh().state, bad.error.code) == ("FAILED", "dependency_unavailable")
        assert "certificate" in bad.error.message
        assert impostor.asked == []
        app.close()
