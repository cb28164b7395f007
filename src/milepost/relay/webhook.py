"""Webhooks, signed after Standard Webhooks: the receiver can tell whose they are, and how old.

The URL is judged like a request's: public addresses only, unless MILEPOST_REQUEST_ALLOW says
otherwise; no redirect is followed. Needs the extra `http`.
"""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from milepost.errors import Invalid, Unavailable
from milepost.relay.broker import ReceiverGone, Undelivered
from milepost.relay.message import CONTENT_TYPE, CloudEvent
from milepost.request.declaration import RequestTimeouts, WireRequest
from milepost.request.guard import AddressGuard, Refused, parse
from milepost.request.reply import Answer, retry_after

if TYPE_CHECKING:
    from milepost.request.wire import Wire

PREFIX = "whsec_"
KEY_LEAST, KEY_MOST = 24, 64
ANSWER_MOST = 64 * 1024
"""How much of an answer is read; nothing in it matters but its status."""
LATER = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


def new_secret() -> str:
    """Make a secret for a webhook: 32 random bytes, in the standard's spelling."""
    import secrets  # noqa: PLC0415 - rarely

    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """Read a secret, or say what one looks like without repeating it."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError, AttributeError):
        key = b""
    if not KEY_LEAST <= len(key) <= KEY_MOST:
        raise Invalid(
            f"a webhook's secret is {PREFIX} and {KEY_LEAST} to {KEY_MOST} bytes in base64; "
            "`milepost channels secret` makes one"
        )
    return key


def signature(key: bytes, *, message_id: str, timestamp: int, body: bytes) -> str:
    """Sign a message at a time: `v1,` and HMAC-SHA256 of id, timestamp and body, in base64."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


class Webhook:
    """A courier that posts events to a URL; all its secrets sign, so that one can be replaced."""

    kind = "webhook"

    def __init__(
        self,
        url: str,
        secrets: Sequence[str],
        *,
        guard: AddressGuard,
        seconds: float,
        connections: int,
    ) -> None:
        if isinstance(secrets, str):
            raise Invalid("secrets is a list: the new one, and the old one while it is replaced")
        if not secrets:
            raise Invalid(
                "a webhook needs a secret, so that its receiver can tell who sent it: "
                "secrets=[...]; `milepost channels secret` makes one"
            )
        self._keys = [key_of(secret) for secret in secrets]
        self._url = parse(url)
        self._guard = guard
        self._seconds = seconds
        self._connections = connections
        self._wire: Wire | None = None
        self.target = self._url.shown

    async def deliver(self, event: CloudEvent) -> None:
        """Post it; only a 2xx in time counts."""
        answer = await self._send(event)
        if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return
        if answer.status == HTTPStatus.GONE:
            raise ReceiverGone(f"{self.target} answered 410 Gone")
        after = retry_after(answer) if answer.status in LATER else None
        raise Undelivered(f"{self.target} answered {answer.status}", after=after)

    async def _send(self, event: CloudEvent) -> Answer:
        try:
            from milepost.request import wire  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise Unavailable("webhooks need an extra: pip install 'milepost[http]'") from error
        if self._wire is None:
            self._wire = wire.Wire(self._guard, connections=self._connections)
        each = self._seconds
        outgoing = WireRequest(
            method="POST",
            target=self._url,
            headers=self._headers(event),
            content=event.body,
            timeouts=RequestTimeouts(connect=each, read=each, write=each, pool=each),
            most=ANSWER_MOST,
        )
        try:
            return await self._wire.send(outgoing)
        except wire.UnreadableReply as error:
            return error.answer  # its status is all that matters
        except Refused as error:
            raise Undelivered(str(error)) from error
        except (*wire.FAILURES, OSError) as error:
            raise Undelivered(f"{self.target} did not answer: {type(error).__name__}") from error

    def _headers(self, event: CloudEvent) -> dict[str, str]:
        now = int(time.time())
        signatures = [
            signature(key, message_id=event.id, timestamp=now, body=event.body)
            for key in self._keys
        ]
        private = self._url.credentials
        return {
            **({} if private is None else {"Authorization": private}),
            "Content-Type": CONTENT_TYPE,
            "User-Agent": "Milepost",
            "webhook-id": event.id,
            "webhook-timestamp": str(now),
            "webhook-signature": " ".join(signatures),
            **({} if event.traceparent is None else {"traceparent": event.traceparent}),
        }

    async def close(self) -> None:
        """Close every connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()
