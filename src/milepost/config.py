"""Where the store is and how it is used: read once, then only passed."""

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from milepost.address import DEFAULT_URL, StoreUrl
from milepost.errors import Invalid


def store_url(url: str | None, environment: Mapping[str, str]) -> StoreUrl:
    """Choose the store.

    The argument wins, then MILEPOST_DATABASE_URL, DATABASE_URL, the file that MILEPOST_CONFIG
    names or else milepost.toml, ./milepost.db.
    """
    named = url or environment.get("MILEPOST_DATABASE_URL") or environment.get("DATABASE_URL")
    filed = _filed(environment).get("database_url")
    return StoreUrl.parse(named or str(filed or DEFAULT_URL))


def command_for(words: str, store: StoreUrl, environment: Mapping[str, str]) -> str:
    """Write a command that can be copied: it names the store, unless that is found without."""
    try:
        found = store_url(None, environment)
    except Invalid:
        found = None
    return words if found == store else f"{words} --store {shlex.quote(store.typed)}"


_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86_400, "": 1}
_SIZES = {
    "": 1,
    "b": 1,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "k": 1024,
    "m": 1024**2,
    "g": 1024**3,
}
_LARGEST = 2**63 - 1
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def _measured(text: str, units: Mapping[str, float], what: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match.group(2).lower() not in units:
        known = ", ".join(filter(None, units))
        raise Invalid(f"{what}: {text!r} is not a number with one of the units {known}")
    found = float(match.group(1)) * units[match.group(2).lower()]
    if found > _LARGEST:
        raise Invalid(f"{what}: {text[:40]!r} is too large")
    return found


def seconds(text: str, what: str) -> float:
    """Read a duration: a number of seconds, or one with a unit, as in 30s or 7d."""
    return _measured(text, _UNITS, what)


def size(value: object, what: str) -> int:
    """Read a size: a number of bytes, or one with a unit, as in 512M or 2GiB."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Invalid(f"{what}={value!r} must be a number of bytes, or a text like 512M")
    if isinstance(value, int) and value > _LARGEST:
        raise Invalid(f"{what} is more than {_LARGEST:,} bytes")
    found = int(_measured(str(value), _SIZES, what))
    if found <= 0:
        raise Invalid(f"{what}={value!r} must be more than zero")
    return found


FILE = "milepost.toml"
CONFIG = "MILEPOST_CONFIG"
POSITIVE = "more than zero"
SIZE = "bytes, or with a unit"
OPENS = "not from a file in the working folder"
"""Writing to that folder must not decide on access, nor on the hosts that requests reach."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an answer of the server is waited for, in seconds (F4)."""

    command: float = 20.0
    connect: float = 10.0
    idle: float = 10.0
    """How long the server waits for a transaction that is not heard of."""

    @classmethod
    def within(cls, span: float) -> "Timeouts":
        """Choose timeouts that leave a third of a span for the next try, on a fresh connection.

        None is shorter than the pauses of a busy machine.
        """
        command = max(1.0, span * 2 / 3)
        return cls(command, min(10.0, max(1.0, command / 2)), max(1.0, command / 2))


MOVED_BYTES = 1024**2
"""How much of one job a claim must be able to move in a second; it takes many jobs at once."""
PORT_MOST = 65_535
KEEP_LEAST = 60.0
HOLD_LIMIT = 3600.0
"""How long a held job or run may wait to be submitted, or to be added to (H-107, H-108)."""
KEEP_MOST = 36_500 * 86_400.0
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
ISOLATE = ("declared", "all")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings; each by MILEPOST_NAME, then a file. Durations are seconds.

    The file is the one that MILEPOST_CONFIG names, else milepost.toml in the working folder.
    """

    lease: Annotated[float, POSITIVE] = 30.0
    """How long a worker keeps its jobs without a heartbeat; then others run them."""
    heartbeat: Annotated[float, POSITIVE] = 10.0
    """How often a worker renews its lease; at most half of it."""
    sweep: Annotated[float, POSITIVE] = 1.0
    """The longest pause between two looks for jobs that are due, lost or overdue."""
    poll_min: Annotated[float, POSITIVE] = 0.02
    """The first pause of a worker that finds no job; it is doubled while there is none."""
    poll_max: float = 2.0
    """The longest pause of a worker that finds no job and is not woken."""
    error_wait: float = 5.0
    """The longest pause before a store that failed is tried again."""
    recovery: float = 5.0
    """How often a worker compares the jobs that it holds with the store's."""
    grace: float = 30.0
    """How long jobs may go on after SIGTERM before they are given back."""
    hold_limit: Annotated[float, POSITIVE] = HOLD_LIMIT
    """How long a held job or run may wait to be submitted, or to be added to."""
    concurrency: Annotated[int, POSITIVE] = 100
    """How many jobs a worker runs at a time."""
    threads: Annotated[int, POSITIVE] = 16
    """How many of them may be plain functions, which need a thread each."""
    isolated: Annotated[int, POSITIVE] = 4
    """How many of them may run in processes of their own (`isolate=True`)."""
    isolate: str = "declared"
    """Which jobs do: those that are declared so, or all."""
    keep_succeeded: float = 7 * 86_400.0
    """How long jobs and runs are kept that SUCCEEDED; 60s to 36500d."""
    keep_failed: float = 30 * 86_400.0
    """How long jobs and runs are kept that FAILED or were CANCELLED; 60s to 36500d."""
    keep_history: float = 90 * 86_400.0
    """How long the moves of jobs and runs that are still there are kept one by one."""
    keep_audit: float | None = None
    """How long the moves of a job or run are kept that has left; unset: they leave with it."""
    hints: Annotated[int, POSITIVE] = 1_000
    """How many jobs of one queue are on its broker at a time; the others wait in the store."""
    hint_again: Annotated[float, POSITIVE] = 30.0
    """When a broker is told again of a job that nobody claimed; twice as long each time."""
    hint_limit: Annotated[float, POSITIVE] = 900.0
    """How long a job may be on a broker unclaimed; then it is taken back, and handed out anew."""
    broker_away: Annotated[float, POSITIVE] = 10.0
    """How long a broker may be away before workers look for its jobs in the store themselves."""
    archive: str = ""
    """A folder for the moves that leave the store, written before they do; empty: they are gone."""
    max_payload: Annotated[int, SIZE] = 1024**2
    """How many bytes the arguments or the result of one job may have: 1048576, 512KiB, 4MB."""
    host: Annotated[str, OPENS] = "127.0.0.1"
    """The address that the API listens on."""
    port: int = 8000
    """The port that the API listens on; 0: any that is free."""
    hosts: Annotated[str, OPENS] = ""
    """Names that the API answers to, in addition to addresses and names without a dot."""
    secret_key: Annotated[str, OPENS] = ""
    """The key that servers sign sessions of the pages with; empty: one that the store keeps."""
    oidc_issuer: Annotated[str, OPENS] = ""
    """The address of the OpenID provider that people log in to the pages with; empty: none."""
    oidc_client_id: Annotated[str, OPENS] = ""
    """The name of this server at the provider."""
    oidc_client_secret: Annotated[str, OPENS] = ""
    """The secret of this server at the provider; empty: a public client."""
    oidc_groups: Annotated[str, OPENS] = ""
    """What members of the provider's groups may do: ops=operate read;dev=read."""
    oidc_claim: Annotated[str, OPENS] = "groups"
    """The claim that names the groups of a person."""
    oidc_scope: Annotated[str, OPENS] = "openid profile email"
    """What is asked of the provider; some give groups only for a scope of their own."""
    oidc_redirect: Annotated[str, OPENS] = ""
    """The address of /login/oidc/callback as browsers see it; empty: as they address the server."""
    api_rate: float = 1000.0
    """How many requests a second each token may send to a server process."""
    api_connections: Annotated[int, POSITIVE] = 2_000
    """How many connections a server process has open at once."""
    request_allow: Annotated[str, OPENS] = ""
    """Addresses, networks and hosts that requests may reach though they are not public."""
    metrics: Annotated[str, OPENS] = ""
    """Where a worker serves its metrics: PORT on this machine alone, or HOST:PORT; empty: no."""
    request_ports: Annotated[str, OPENS] = "80,443,8080,8443"
    """The ports of public hosts that requests may reach."""
    request_per_host: Annotated[int, POSITIVE] = 50
    """How many requests a worker sends at a time to a host that has no limit of its own."""
    request_rate: str = ""
    """How many requests all workers send to a host without a limit, as in 25/s; empty: any."""
    request_redact: Annotated[str, OPENS] = ""
    """More names of headers and members whose values are kept out of records."""
    request_secrets: Annotated[str, OPENS] = ""
    """The names of secrets that requests may carry, and the hosts that each may go to."""
    request_record: Annotated[int, SIZE] = 16 * 1024
    """How many bytes of a request's and a reply's body are recorded: 16384, 16KiB."""
    broker_url: Annotated[str, OPENS] = ""
    """The address of the broker that channels, inbounds and queues call by its name."""
    public_url: str = ""
    """The API's address as partners reach it, for callbacks."""
    log_level: str = "info"
    """The least level of lines that `worker`, `server` and `dev` log: debug to error."""
    log_format: str = "text"
    """How they write them: text, or json, an object a line."""

    @property
    def payload_most(self) -> int:
        """How large one argument may be: a claim must be able to move it within the lease."""
        return min(self.max_payload, int(self.lease * MOVED_BYTES))

    @property
    def limits(self) -> Timeouts:
        """How long a statement may take; those that move many rows have timeouts of their own."""
        return Timeouts.within(self.lease)

    @property
    def heartbeat_limits(self) -> Timeouts:
        """How long a heartbeat may take: another fits in before the lease ends."""
        return Timeouts.within((self.lease - self.heartbeat) * 3 / 4)

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports of public hosts that a request may reach."""
        return tuple(int(word) for word in re.split(r"[,\s]+", self.request_ports) if word)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """The host and port where a worker serves its metrics; None: nowhere."""
        if not self.metrics:
            return None
        host, _, port = self.metrics.rpartition(":")
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > PORT_MOST:
            raise Invalid(f"metrics={self.metrics!r}: expected PORT or HOST:PORT, such as 9100")
        return host.strip("[]") or "127.0.0.1", int(port)

    @property
    def redacted(self) -> tuple[str, ...]:
        """More names of headers and members under which secrets stand."""
        return tuple(word for word in re.split(r"[,\s]+", self.request_redact) if word)

    @classmethod
    def load(cls, environment: Mapping[str, str], **given: object) -> "Settings":
        """Read each setting: from the arguments, the environment, the file, the default."""
        if unknown := sorted(set(given) - {field.name for field in fields(cls)}):
            raise Invalid(f"no such setting: {', '.join(unknown)}")
        filed = _filed(environment)
        chosen: dict[str, Any] = {}
        for field in fields(cls):
            value = given.get(field.name)
            if value is None:
                value = environment.get(variable(field.name), filed.get(field.name))
            if value is not None:
                chosen[field.name] = _converted(field.name, value)
        loaded = cls(**chosen)
        loaded.check()
        return loaded

    def chosen(self, **given: str | None) -> "Settings":
        """Change those that are given, and refuse what they must not be."""
        changed = replace(self, **{n: v for n, v in given.items() if v is not None})  # type: ignore[arg-type]
        changed.check()
        return changed

    def check(self) -> None:
        """Refuse settings that would lose leases or never do anything."""
        if self.heartbeat * 2 > self.lease:
            raise Invalid(
                f"heartbeat={self.heartbeat:g} s must be at most half of lease={self.lease:g} s, "
                "or one late heartbeat loses every job"
            )
        for name in RULED[POSITIVE]:
            if getattr(self, name) <= 0:
                raise Invalid(f"{name} must be more than zero")
        if not 0 <= self.port <= PORT_MOST:
            raise Invalid(f"port={self.port} must be between 0 (any) and {PORT_MOST}")
        if not re.fullmatch(r"[0-9]{1,5}([,\s]+[0-9]{1,5})*", self.request_ports):
            raise Invalid("request_ports: expected numbers, such as 80,443")
        words = (("log_level", LOG_LEVELS), ("log_format", LOG_FORMATS), ("isolate", ISOLATE))
        for name, known in words:
            if getattr(self, name) not in known:
                raise Invalid(f"{name}={getattr(self, name)!r} must be one of {', '.join(known)}")
        _ = self.metrics_address
        self._check_kept()

    def _check_kept(self) -> None:
        for name in ("keep_succeeded", "keep_failed", "keep_history", "keep_audit"):
            kept = getattr(self, name)
            if kept is not None and not KEEP_LEAST <= kept <= KEEP_MOST:
                raise Invalid(
                    f"{name} must be between 60s, so that those who wait for a job see its end, "
                    "and 36500d"
                )
        for name in ("keep_succeeded", "keep_failed"):
            if (kept := getattr(self, name)) > self.keep_history:
                raise Invalid(
                    f"keep_history={_duration(self.keep_history)} must be at least {name}="
                    f"{_duration(kept)}: a job or run that is kept keeps its whole history; "
                    "set keep_history too"
                )


def _ruled(rule: str) -> tuple[str, ...]:
    """Name the settings that are annotated with a rule."""
    hints = get_type_hints(Settings, include_extras=True)
    return tuple(n for n, hint in hints.items() if rule in getattr(hint, "__metadata__", ()))


_TYPES = get_type_hints(Settings)
RULED = {rule: _ruled(rule) for rule in (POSITIVE, SIZE, OPENS)}


def variable(name: str) -> str:
    """Name the variable of the environment that sets it."""
    return f"MILEPOST_{name.upper()}"


def _duration(length: float) -> str:
    unit = next((unit for unit in ("d", "h", "m") if length >= _UNITS[unit]), "s")
    return f"{length / _UNITS[unit]:g}{unit}"


def origins(environment: Mapping[str, str]) -> dict[str, str]:
    """Say for each setting, and for the store's address, where its value comes from."""
    path = environment.get(CONFIG) or FILE
    filed = _filed(environment)
    found = {}
    for name in ("database_url", *(field.name for field in fields(Settings))):
        variables = [variable(name)] + ["DATABASE_URL"] * (name == "database_url")
        places = [v for v in variables if environment.get(v)] + [path] * (name in filed)
        found[name] = places[0] if places else "default"
    return found


def _converted(name: str, value: object) -> float | int | str:
    if _TYPES[name] is str:
        return str(value).strip()
    if name in RULED[SIZE]:
        return int(_measured(str(value), _SIZES, name))
    if _TYPES[name] is int:
        try:
            return int(str(value))
        except ValueError as error:
            raise Invalid(f"{name}: {value!r} is not a whole number") from error
    return _measured(str(value), _UNITS, name)


def _filed(environment: Mapping[str, str]) -> dict[str, object]:
    """Read the settings' file: the one that is named, or the one that lies here."""
    if named := environment.get(CONFIG):
        return _from_file(Path(named))
    here = Path(FILE)
    table = _from_file(here) if here.is_file() else {}
    if opening := sorted(set(table) & {*RULED[OPENS]}):
        raise Invalid(
            f"{here.absolute()} sets {', '.join(opening)}: settings of access are not read from "
            f"a file in the working folder; set it in the environment, or name "
            f"the file by {CONFIG}={here.absolute()}"
        )
    return table


def _from_file(path: Path) -> dict[str, object]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"{path.absolute()} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: {error}") from error
    known = {field.name for field in fields(Settings)} | {"database_url"}
    if unknown := sorted(set(table) - known):
        raise Invalid(f"{path}: no such setting: {', '.join(unknown)}")
    return table
