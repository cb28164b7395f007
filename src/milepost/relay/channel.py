"""A channel as a program declares it: where it leads, how often it is tried, how large it is."""

import random
from collections.abc import Mapping
from typing import Any

import msgspec

from milepost.codec import check_text
from milepost.config import Settings
from milepost.errors import Invalid
from milepost.lifecycle import JobState
from milepost.options import check_seconds
from milepost.relay.apprise import AppriseCourier
from milepost.relay.broker import BrokerCourier, Courier
from milepost.relay.message import MOST_BYTES
from milepost.relay.webhook import Webhook
from milepost.request.guard import AddressGuard
from milepost.store.outbox import Message

MARGIN_SECONDS = 1.0
BYTES_LEAST = 10_000
AT_ONCE_MOST = 1_000
BROKER_SHARE = 0.9
"""A broker says by itself that it was not reached, before the relay's own time is over."""
OCCASIONS = ("end", "failure")
WAYS = {"webhook": ("secrets",), "people": ("title", "template"), "broker": ("subject",)}
"""The places that a channel may lead to, each with the options that go with it."""


class DeliveryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long, how often and how large."""

    attempts: int = 20
    timeout: float = 10.0
    delay: float = 1.0
    max_delay: float = 3600.0
    concurrency: int = 16
    max_bytes: int = MOST_BYTES

    def __post_init__(self) -> None:
        """Refuse values that are out of bounds."""
        for name in ("timeout", "delay", "max_delay"):
            check_seconds(name, getattr(self, name), zero=False)
        for name, least, most in (
            ("attempts", 1, 1_000),
            ("concurrency", 1, AT_ONCE_MOST),
            ("max_bytes", BYTES_LEAST, 64 * 1024**2),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise Invalid(f"{name}={value!r} must be a whole number from {least} to {most:,}")

    @property
    def lease_seconds(self) -> float:
        """How long no other relay may take a message: longer than one delivery."""
        return self.timeout * 2 + MARGIN_SECONDS

    def wait_seconds(self, attempts: int, after: float | None = None) -> float:
        """Say how long to wait after so many failures: twice as long each time, with jitter."""
        doubled = self.delay * 2.0 ** min(attempts, 60)
        wait = min(doubled, self.max_delay) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        return wait if after is None else max(wait, min(after, self.max_delay))


class ChannelSpec(msgspec.Struct, frozen=True):
    """A declared channel; without a courier its messages wait to be pulled."""

    name: str
    courier: Courier | None
    limits: DeliveryLimits
    tenant: str = ""
    on: str = "end"

    def wants(self, message: Message) -> bool:
        """Whether it is told of such an end; that consolidation begins is none."""
        return self.on == "end" or message.state in (JobState.FAILED, JobState.CANCELLED)

    @property
    def row(self) -> dict[str, str | None]:
        """Its row in the store."""
        kind, target = "pull", None
        if self.courier is not None:
            kind, target = self.courier.kind, self.courier.target
        return {"name": self.name, "kind": kind, "target": target, "tenant": self.tenant}


def declare_channel(name: str, settings: Settings, given: Mapping[str, Any]) -> ChannelSpec:
    """Make a channel of the options of `app.channel`, or raise `Invalid`; it leads to one place."""
    limits = DeliveryLimits(
        **{option: given[option] for option in DeliveryLimits.__struct_fields__}
    )
    check_text(name, what="name")
    owner = "" if given["tenant"] is None else check_text(given["tenant"], what="tenant")
    chosen = [way for way in WAYS if given[way] is not None]
    if len(chosen) > 1:
        raise Invalid(f"channel {name!r} leads to one place, not to {' and '.join(chosen)}")
    for way, options in WAYS.items():
        alone = ", ".join(option for option in options if given[option])
        if alone and way not in chosen:
            raise Invalid(f"channel {name!r}: {alone} goes with {way}=")
    if given["on"] not in OCCASIONS:
        raise Invalid(f"channel {name!r}: on={given['on']!r} must be one of {', '.join(OCCASIONS)}")
    if given["on"] != "end" and not chosen:
        raise Invalid(f"channel {name!r}: on= goes with {', '.join(WAYS)}; a pull takes every end")
    courier: Courier | None = None
    if (url := given["webhook"]) is not None:
        courier = Webhook(
            url,
            given["secrets"],
            guard=AddressGuard(settings.request_allow, ports=settings.ports),
            seconds=limits.timeout,
            connections=limits.concurrency,
        )
    elif (people := given["people"]) is not None:
        courier = AppriseCourier(people, title=given["title"], template=given["template"])
    elif (broker := given["broker"]) is not None:
        seconds = limits.timeout * BROKER_SHARE
        courier = BrokerCourier(broker, given["subject"] or name, seconds=seconds)
    return ChannelSpec(name, courier, limits, owner, given["on"])
