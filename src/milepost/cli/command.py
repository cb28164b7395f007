"""The shape of commands: the store or the app they are about, and the form of their answers."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import click

from milepost.address import StoreUrl
from milepost.cli import options
from milepost.cli.groups import HelpfulGroup
from milepost.cli.output import say, show_filled, show_json, show_rows
from milepost.config import Settings, command_for, store_url

if TYPE_CHECKING:
    from milepost.batch.handles import Runs
    from milepost.client import Client
    from milepost.handles import Jobs

Access = Literal["read", "write", "create"]


class Session:
    """One command at work: the store it is about, and the form of its answer.

    No app is needed: values are shown as they were stored. The store is opened when it is first
    used. To `read` it must be there and stays untouched; to `write` it must be there; to `create`
    an empty one is set up.
    """

    def __init__(self, store: StoreUrl, *, access: Access = "read", as_json: bool = False) -> None:
        self.store = store
        self.as_json = as_json
        self._access = access

    @cached_property
    def client(self) -> "Client":
        """The way to the store."""
        from milepost.client import Client
        from milepost.encrypt import chosen_codec

        return Client(
            self.store,
            codec=chosen_codec(os.environ),
            settings=Settings.load(os.environ),
            create=self._access == "create",
            look=self._access == "read",
        )

    @cached_property
    def jobs(self) -> "Jobs":
        """The store's jobs."""
        from milepost.handles import Jobs

        return Jobs(self.client, lambda _kind, _version: Any)

    @cached_property
    def runs(self) -> "Runs":
        """The store's runs."""
        from milepost.batch.handles import Runs

        return Runs(self.client, lambda _kind, _version: Any)

    @property
    def actor(self) -> str:
        """The name in the journal of the person at the prompt, where the command writes."""
        from milepost.client import caller

        return caller().actor

    def close(self) -> None:
        """Close the store, if it was opened."""
        if "client" in vars(self):
            self.client.close()

    def typed(self, words: str) -> str:
        """Write a command in backquotes, to be copied; it names the store where necessary."""
        return f"`{command_for('milepost ' + words, self.store, os.environ)}`"

    def show(self, document: Mapping[str, object]) -> None:
        """Print one document: as JSON, or the names that have a value, one to a line."""
        (show_json if self.as_json else show_filled)(document)

    def table(
        self, rows: Sequence[Mapping[str, Any]], *columns: str, empty: str, **cells: Any
    ) -> None:
        """Print documents of one kind: as JSON, or as a table with these columns, or all."""
        if self.as_json:
            show_json(rows)
        elif rows:
            show_rows(rows, *columns, **cells)
        else:
            say(empty)

    def answer(self, document: object, text: str) -> None:
        """Print the document for a program, or the text for a person."""
        if self.as_json:
            show_json(document)
        else:
            say(text)

    def report(self, document: object, text: str) -> None:
        """Say the text in any case; print the document for a program."""
        if self.as_json:
            show_json(document)
        say(text)


class AppSession(Session):
    """A command at work on an app, in the app's own store."""

    def __init__(self, target: str, *, as_json: bool) -> None:
        from milepost.cli.values import load_app

        self.target = target
        self.app = load_app(target)
        super().__init__(self.app.client.url, as_json=as_json)
        self.client = self.app.client


@contextmanager
def open_session(
    store: StoreUrl, *, access: Access = "read", as_json: bool = False
) -> Iterator[Session]:
    """Open a session, and close it afterwards; one that writes acts in the person's name."""
    acts = nullcontext() if access == "read" else _person()
    with acts, closing(Session(store, access=access, as_json=as_json)) as session:
        yield session


def _person() -> AbstractContextManager[object]:
    from milepost.client import acting

    return acting(f"cli:{_login()}")


def _parse(_context: click.Context, _parameter: click.Parameter, value: str | None) -> StoreUrl:
    return store_url(value, os.environ)


def store_option(*names: str) -> click.Option:
    """Make the option that says which store a command is about."""
    return click.Option(
        ["--store", *names],
        metavar="URL",
        callback=_parse,
        help="sqlite:///file.db or postgresql://…  [default: MILEPOST_DATABASE_URL, "
        "DATABASE_URL, milepost.toml, then ./milepost.db]",
    )


WAIT = click.Option(
    ["--wait"], is_flag=True, help="Wait for its end; exit code 3 unless it succeeded."
)
TIMEOUT = click.Option(
    ["--timeout"], type=options.SECONDS, metavar="SECONDS", help="With --wait: give up then."
)
JSON = click.Option(
    ["--json", "as_json"], is_flag=True, help="Print one JSON document instead of a table."
)


class StoreCommand(click.Command):
    """A command on a store: its function gets a `Session`. Has --store and --json."""

    def __init__(
        self,
        *,
        params: Sequence[click.Parameter] = (),
        access: Access = "read",
        has_json: bool = True,
        also_called: Sequence[str] = (),
        **attributes: Any,
    ) -> None:
        ends = [JSON] if has_json else []
        super().__init__(params=[store_option(*also_called), *params, *ends], **attributes)
        self._access = access

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function with a session; one that writes acts in the person's name."""
        store, as_json = ctx.params.pop("store"), ctx.params.pop("as_json", False)
        with open_session(store, access=self._access, as_json=as_json) as session:
            return _call(ctx, session)


class StoreGroup(HelpfulGroup):
    """A group of commands on a store."""

    command_class = StoreCommand
    group_class = type


class AppCommand(click.Command):
    """A command on an app: its function gets an `AppSession`. Has APP and --json."""

    last: tuple[click.Parameter, ...] = (JSON,)

    def __init__(self, *, params: Sequence[click.Parameter] = (), **attributes: Any) -> None:
        target = click.Argument(["target"], metavar="APP")
        super().__init__(params=[target, *params, *self.last], **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        """Load the app, and call the function in the person's name."""
        with _person():
            session = AppSession(ctx.params.pop("target"), as_json=ctx.params.pop("as_json"))
            return _call(ctx, session)


class StartCommand(AppCommand):
    """Starts a job or a run, which its function returns: prints its id, or waits for its end."""

    last = (WAIT, TIMEOUT, JSON)

    def invoke(self, ctx: click.Context) -> Any:
        """Start it, and wait for it if asked to."""
        from milepost.cli.subjects import await_end, show_started

        is_awaited, timeout = ctx.params.pop("wait"), ctx.params.pop("timeout")
        session, handle = super().invoke(ctx)
        if is_awaited:
            say(f"{handle.what} {handle.id}")
            await_end(session, handle, timeout, target=session.target)
        else:
            show_started(session, handle)


def _call(ctx: click.Context, session: Session) -> tuple[Any, Any]:
    callback = ctx.command.callback
    return session, None if callback is None else ctx.invoke(callback, session, **ctx.params)


def _login() -> str:
    """Name the person at the prompt, as the system knows them: a variable can be set by anybody."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        import getpass

        try:
            return getpass.getuser()
        except (ImportError, KeyError, OSError):
            return "unknown"
