"""Messages for people, by mail or chat, through Apprise: one URL for each place they read.

Needs the extra `notify`. The URLs hold passwords, so nothing here ever repeats one.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from string import Template
from typing import TYPE_CHECKING

from milepost.errors import Invalid, Unavailable
from milepost.relay.broker import Undelivered
from milepost.relay.message import NAMES, CloudEvent

if TYPE_CHECKING:
    from apprise import Apprise

TITLE = "$subject"
BODY = "$machine $id ($kind) ended $state at $time. $error"
LOGGERS = ("apprise", "urllib3.connectionpool")


class _Quiet(logging.Filter):
    """Drops debug lines of libraries, which show addresses, while a message is sent (H-105).

    Apprise works in threads of its own, so it is for all of them; warnings pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sending = 0

    def filter(self, record: logging.LogRecord) -> bool:
        return not self._sending or record.levelno >= logging.WARNING

    @contextmanager
    def while_sending(self) -> Iterator[None]:
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self)  # once, however often
        self._sending += 1
        try:
            yield
        finally:
            self._sending -= 1


_quiet = _Quiet()


class AppriseCourier:
    """A courier that notifies people; delivered when every place has taken it."""

    kind = "people"

    def __init__(self, urls: Sequence[str], *, title: str | None, template: str | None) -> None:
        if isinstance(urls, str):
            raise Invalid("people is a list of addresses, such as ['mailto://user:pass@host']")
        if not urls:
            raise Invalid("people names nobody; give it at least one address")
        self._urls = list(urls)
        self._title = _check(title or TITLE)
        self._body = _check(template or BODY)
        self._apprise: Apprise | None = None
        self.target = ", ".join(sorted({f"{url.partition('://')[0]}://" for url in urls}))

    async def deliver(self, event: CloudEvent) -> None:
        """Notify every address; one that does not take it brings the message again, to all."""
        title = self._title.substitute(event.told).strip()
        body = self._body.substitute(event.told).strip()
        with _quiet.while_sending():
            taken = await self._open().async_notify(body=body, title=title)
        if not taken:
            raise Undelivered(f"not every one of {len(self._urls)} addresses took it")

    def _open(self) -> "Apprise":
        if self._apprise is None:
            try:
                import apprise  # noqa: PLC0415 - an extra
            except ImportError as error:
                raise Unavailable("people need an extra: pip install 'milepost[notify]'") from error
            made = apprise.Apprise()
            for place, url in enumerate(self._urls, start=1):
                if not made.add(url):
                    raise Undelivered(
                        f"address {place} of {len(self._urls)} is none that Apprise knows"
                    )
            self._apprise = made
        return self._apprise

    async def close(self) -> None:
        """Nothing stays open."""
        self._apprise = None


def _check(text: str) -> Template:
    template = Template(text)
    try:
        template.substitute(dict.fromkeys(NAMES, ""))
    except (KeyError, ValueError) as error:
        raise Invalid(
            f"the template cannot be filled in ({error}); it may name ${', $'.join(NAMES)}, and "
            "says $$ for a dollar"
        ) from error
    return template
