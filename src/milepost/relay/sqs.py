"""Amazon SQS as a broker: a publication counts when the queue has answered for that very message.

Concurrent publications share a batch, and so do acknowledgements. Experimental: tested on `moto`,
not on Amazon's service. Needs the extra `sqs`; credentials are found as AWS's own tools find them.
"""

import asyncio
import base64
import hashlib
import json
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

from milepost.errors import Invalid, MilepostError, Unavailable
from milepost.relay.adapter import Hand, Link, reason, split_address
from milepost.relay.broker import Delivery, Incoming, Lag, Outgoing, Undelivered

CONNECT_SECONDS = 3.0
POLL_SECONDS = 20
"""The longest that the service lets a receiver wait."""
BATCH_MOST = 10
BATCH_BYTES = 256 * 1024
MESSAGE_BYTES = 1024 * 1024
HIDDEN_MOST = 12 * 3600
KEPT_SECONDS = 14 * 24 * 3600
"""As long as the service can."""
RECEIVES_MOST = 50
ID, CODED = "milepost-id", "milepost-encoding"
ATTRIBUTES_MOST = 10

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,70}")  # "-dead.fifo" fits too, in 80
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CREDENTIALS = {
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_BUSY = {
    "InternalError",
    "InternalFailure",
    "OverLimit",
    "RequestThrottled",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
}
_NO_QUEUE = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"}


class SQS:
    """The queues of a region, or of an endpoint that speaks its protocol.

    `address` is `sqs://eu-central-1`, or `sqs://HOST:PORT/REGION` for another server that speaks
    the protocol, by HTTP. A subject is the name of a queue; one that ends with `.fifo`, or any with
    `fifo`, keeps the order of messages of one key, and drops an id that it has seen within five
    minutes. With `create` a queue that is missing is made, together with one for messages that came
    too often; without, it must be there. `options` go to the client: `aws_access_key_id`, `verify`.
    """

    name = "sqs"

    def __init__(
        self,
        address: str = "sqs://us-east-1",
        *,
        create: bool = False,
        fifo: bool = False,
        hidden_seconds: float = 30.0,
        **options: Any,
    ) -> None:
        self._region, self._endpoint = _parts(address)
        self._create = create
        self._fifo = fifo
        self._hidden_seconds = max(1, math.ceil(hidden_seconds))
        self._options = options
        self._link = Link(self.address, self._connect, hang_up=_Connection.close)

    @property
    def address(self) -> str:
        """Where it is, without passwords."""
        return f"sqs://{self._region}" + (f" at {self._endpoint}" if self._endpoint else "")

    async def publish(self, subject: str, message: Outgoing, *, seconds: float) -> None:
        """Return once the queue has stored it."""
        queue = self._queue(subject)
        entry = _entry(message, fifo=queue.endswith(".fifo"))
        if (size := _size(entry)) > MESSAGE_BYTES:
            raise Undelivered(f"SQS takes no message larger than {MESSAGE_BYTES:,} bytes")
        async with _limit(seconds, self.address):
            connection = await self._link.get()
            try:
                url = await self._url(connection, queue)
                await connection.batch("send_message", url).add(entry, size)
            except _NoQueue as error:
                if self._create:
                    raise Unavailable(f"the queue {queue} is gone; it is made anew") from error
                raise Undelivered(str(error)) from error

    async def receive(
        self,
        subject: str,
        *,
        name: str,  # noqa: ARG002 - a queue has consumers without a name
        most: int,
        seconds: float,
    ) -> Sequence[Delivery]:
        """Return the next messages of the queue; its consumers share them, whatever their name."""
        clock = asyncio.get_running_loop().time
        until, found = clock() + seconds, list[Delivery]()
        async with _limit(seconds + POLL_SECONDS, self.address):
            connection = await self._link.get()
            url = await self._url(connection, self._queue(subject))
            while len(found) < most:
                left = until - clock()
                wait = 0 if found else min(max(int(left), 0), POLL_SECONDS)
                came = await connection.poll(
                    url, min(most - len(found), BATCH_MOST), wait, self._hidden_seconds
                )
                found += came
                if not came and (found or left <= 0):
                    break
                if not came and wait == 0:  # less than a second, which the service cannot wait
                    await asyncio.sleep(min(left, 0.1))
        return found

    async def lag(self, subject: str, *, name: str, seconds: float) -> Lag:  # noqa: ARG002 - as above
        """Count roughly, as the service does; the dead are those of the queue's redrive policy."""
        async with _limit(seconds, self.address):
            connection = await self._link.get()
            found = await connection.attributes(await self._url(connection, self._queue(subject)))
            dead = None
            if "RedrivePolicy" in found:
                arn = str(json.loads(found["RedrivePolicy"])["deadLetterTargetArn"])
                grave = await connection.url_of(arn.rpartition(":")[2])
                dead = int((await connection.attributes(grave))["ApproximateNumberOfMessages"])
            delayed = int(found.get("ApproximateNumberOfMessagesDelayed", 0))
            return Lag(
                waiting=int(found["ApproximateNumberOfMessages"]) + delayed,
                in_flight=int(found["ApproximateNumberOfMessagesNotVisible"]),
                dead=dead,
            )

    async def close(self) -> None:
        """Give back what is in hand, and hang up; the next use connects anew."""
        await self._link.close()

    def _queue(self, subject: str) -> str:
        fifo = self._fifo or subject.endswith(".fifo")
        return queue_name(subject.removesuffix(".fifo")) + (".fifo" if fifo else "")

    async def _url(self, connection: "_Connection", queue: str) -> str:
        try:
            return await connection.url_of(queue)
        except _NoQueue:
            if not self._create:
                raise
        await connection.make(queue)
        return await connection.url_of(queue)

    async def _connect(self) -> "_Connection":
        try:
            from aiobotocore.config import AioConfig  # noqa: PLC0415 - an extra
            from aiobotocore.session import get_session  # noqa: PLC0415 - likewise
        except ImportError as error:
            raise Unavailable("SQS needs an extra: pip install 'milepost[sqs]'") from error
        settings = AioConfig(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=POLL_SECONDS + 5,
            retries={"total_max_attempts": 1},  # whoever calls tries again, and counts
            max_pool_connections=20,
        )
        session = get_session()
        session.register_component("data_loader", _loader())
        made = session.create_client(
            "sqs",
            region_name=self._region,
            **{"endpoint_url": self._endpoint, "config": settings, **self._options},
        )
        return _Connection(await made.__aenter__(), self.address)


class _Connection:
    """A client, the addresses of its queues, the calls that are gathered and what is in hand."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address
        self._urls: dict[str, str] = {}
        self._batches: dict[tuple[str, str], _Batcher] = {}
        self._hand = Hand(delays=True)

    async def close(self) -> None:
        """Give back what is in hand, and hang up."""
        await self._hand.empty()
        await self._client.__aexit__(None, None, None)

    async def poll(self, url: str, most: int, wait: int, hidden: int) -> list[Delivery]:
        """Ask once for messages."""
        answer = await self.call(
            "receive_message",
            url,
            QueueUrl=url,
            MaxNumberOfMessages=most,
            WaitTimeSeconds=wait,
            VisibilityTimeout=hidden,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        found = answer.get("Messages", ())
        return [self._hand.take(_Delivery(self, url, message)) for message in found]

    async def url_of(self, queue: str) -> str:
        """Find a queue, or raise `_NoQueue`."""
        if queue not in self._urls:
            answer = await self.call("get_queue_url", queue, QueueName=queue)
            self._urls[queue] = answer["QueueUrl"]
        return self._urls[queue]

    async def make(self, queue: str) -> None:
        """Make a queue, and one for messages that came too often."""
        plain, dot, suffix = queue.partition(".")
        dead = f"{plain}-dead{dot}{suffix}"
        kind = {"FifoQueue": "true"} if suffix else {}
        kept = {**kind, "MessageRetentionPeriod": str(KEPT_SECONDS)}
        made = await self.call("create_queue", dead, QueueName=dead, Attributes=kept)
        arn = (await self.attributes(made["QueueUrl"]))["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": RECEIVES_MOST})
        settings = {**kept, "RedrivePolicy": policy}
        await self.call("create_queue", queue, QueueName=queue, Attributes=settings)

    async def attributes(self, url: str) -> dict[str, str]:
        """Read the settings and counts of a queue."""
        answer = await self.call("get_queue_attributes", url, QueueUrl=url, AttributeNames=["All"])
        return dict(answer["Attributes"])

    def batch(self, what: str, url: str) -> "_Batcher":
        """Give the place where calls of a kind for a queue are gathered."""
        if (what, url) not in self._batches:

            async def send(entries: list[dict[str, Any]]) -> list[MilepostError | None]:
                answer = await self.call(f"{what}_batch", url, QueueUrl=url, Entries=entries)
                failed = {each["Id"]: each for each in answer.get("Failed", ())}
                return [self._refusal(url, failed.get(entry["Id"])) for entry in entries]

            self._batches[what, url] = _Batcher(send)
        return self._batches[what, url]

    async def call(self, what: str, place: str, /, **values: Any) -> Any:
        """Call the service; its errors become ours."""
        from botocore import exceptions  # noqa: PLC0415 - an extra

        try:
            return await getattr(self._client, what)(**values)
        except exceptions.ClientError as error:
            told = error.response.get("Error", {})
            raise self._trouble(str(told.get("Code")), place, sender=True) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise Unavailable(
                f"no credentials for {self._address}: set AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY, or a role or profile that AWS's tools find"
            ) from error
        except (exceptions.BotoCoreError, OSError, TimeoutError) as error:
            text = f"{self._address} cannot be reached: {reason(error)}"
            raise Unavailable(text) from error

    def _refusal(self, url: str, failed: Mapping[str, Any] | None) -> MilepostError | None:
        if failed is None:
            return None
        return self._trouble(str(failed.get("Code")), url, sender=bool(failed.get("SenderFault")))

    def _trouble(self, code: str, place: str, *, sender: bool) -> MilepostError:
        code, queue = code.rpartition("#")[2], place.rpartition("/")[2]
        if code in _NO_QUEUE:
            self._urls.clear()
            return _NoQueue(
                f"{self._address} has no queue {queue!r}: create it, or let"
                " SQS(..., create=True) do so"
            )
        if code in _CREDENTIALS:
            return Unavailable(
                f"{self._address} refuses these credentials ({code}): look at AWS_ACCESS_KEY_ID,"
                f" AWS_SECRET_ACCESS_KEY or the role, and its right to the queue {queue!r}"
            )
        if code in _BUSY or not sender:
            return Unavailable(f"{self._address} is busy: {code}")
        return Undelivered(f"the queue {queue!r} refused it: {code}")


@cache
def _loader() -> Any:
    """Read the descriptions of the service once: a client takes 0.1 s of computing otherwise."""
    from botocore.loaders import create_loader  # noqa: PLC0415 - an extra

    return create_loader()


class _NoQueue(Unavailable):
    """The queue is not there, or not any more."""


@asynccontextmanager
async def _limit(seconds: float, address: str) -> AsyncIterator[None]:
    """Say in words that there was no answer in time."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise Unavailable(f"{address} did not answer within {seconds:g} s") from error


class _Batcher:
    """Sends what several callers want at the same time in one call, ten at most."""

    def __init__(
        self, send: Callable[[list[dict[str, Any]]], Awaitable[list[MilepostError | None]]]
    ) -> None:
        self._send = send
        self._waiting: deque[tuple[dict[str, Any], int, asyncio.Future[None]]] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def add(self, entry: dict[str, Any], size: int = 0) -> None:
        """Return when the service has answered for this entry, or raise what it said of it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, size, done))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._work())
        await done

    async def _work(self) -> None:
        while taken := self._take():
            answers = await self._answers([entry for entry, _ in taken])
            for (_, done), error in zip(taken, answers, strict=True):
                _tell(done, error)

    async def _answers(self, entries: list[dict[str, Any]]) -> list[MilepostError | None]:
        try:
            return await self._send([{**e, "Id": str(place)} for place, e in enumerate(entries)])
        except Undelivered as error:
            if len(entries) == 1:
                return [error]
        except MilepostError as error:
            return [error] * len(entries)
        # The batch was refused for what is wrong with one of them: the others go alone.
        return [(await self._answers([entry]))[0] for entry in entries]

    def _take(self) -> list[tuple[dict[str, Any], asyncio.Future[None]]]:
        taken, room = list[tuple[dict[str, Any], asyncio.Future[None]]](), BATCH_BYTES
        while self._waiting and len(taken) < BATCH_MOST:
            entry, size, done = self._waiting[0]
            if taken and size > room:
                break
            self._waiting.popleft()
            if not done.done():  # else nobody waits for it any more
                taken.append((entry, done))
                room -= size
        return taken


def _tell(done: asyncio.Future[None], error: MilepostError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


class _Delivery:
    """A message that is hidden from other receivers for a while."""

    def __init__(self, connection: _Connection, url: str, found: Mapping[str, Any]) -> None:
        self._deleting = connection.batch("delete_message", url)
        self._hiding = connection.batch("change_message_visibility", url)
        self._receipt = {"ReceiptHandle": found["ReceiptHandle"]}
        values = found.get("MessageAttributes", {})
        headers = {
            name.lower(): value["StringValue"]
            for name, value in values.items()
            if "StringValue" in value
        }
        body = str(found["Body"])
        coded = headers.pop(CODED, None) == "base64"
        count = found.get("Attributes", {}).get("ApproximateReceiveCount")
        self.message = Incoming(
            headers.pop(ID, None) or str(found["MessageId"]),
            base64.b64decode(body) if coded else body.encode(),
            headers,
            deliveries=None if count is None else int(count),
        )

    async def acknowledge(self) -> None:
        """Say that it is ours now; a lost acknowledgement only brings it again."""
        await self._deleting.add(self._receipt)

    async def again(self, seconds: float) -> None:
        """Give it back: it is hidden for so long."""
        hidden = min(max(math.ceil(seconds), 0), HIDDEN_MOST)
        await self._hiding.add({**self._receipt, "VisibilityTimeout": hidden})

    async def terminate(self) -> None:
        """Say that it can never be used."""
        await self._deleting.add(self._receipt)


def queue_name(subject: str) -> str:
    """Write a subject as the name of a queue: a dot is a dash there.

    One with other characters, or too long, gets a hash of itself: two subjects, two queues.
    """
    name = subject.replace(".", "-")
    if _PLAIN.fullmatch(name):
        return name
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", name)[:60]
    return f"{plain}-{hashlib.sha256(subject.encode()).hexdigest()[:8]}"


def _parts(address: str) -> tuple[str, str | None]:
    """Read an address: the region, and the endpoint if it is not Amazon's."""
    parts = split_address(address, kind="sqs", several=True)
    if parts.username or parts.password:
        raise Invalid(
            "an sqs address holds no password: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
            " or give SQS(..., aws_access_key_id=, aws_secret_access_key=)"
        )
    path = parts.path.strip("/")
    if not parts.hostname or bool(parts.port) != bool(path):
        raise Invalid("an sqs address is like sqs://eu-central-1, or sqs://HOST:PORT/REGION")
    if not parts.port:
        return parts.hostname, None
    return path, f"http://{parts.hostname}:{parts.port}"


def _entry(message: Outgoing, *, fifo: bool) -> dict[str, Any]:
    body, coded = _text(message.data)
    headers = {ID: message.id, **message.headers, **coded}
    given = {name: value for name, value in headers.items() if value}
    if len(given) > ATTRIBUTES_MOST:
        raise Undelivered(f"SQS takes no message with more than {ATTRIBUTES_MOST} headers")
    entry: dict[str, Any] = {
        "MessageBody": body,
        "MessageAttributes": {
            name: {"DataType": "String", "StringValue": value} for name, value in given.items()
        },
    }
    if fifo:
        entry["MessageDeduplicationId"] = _token(message.id)
        # Without a key nothing must wait for another: each is a group of its own.
        entry["MessageGroupId"] = _token(message.id if message.key is None else message.key)
    return entry


def _size(entry: Mapping[str, Any]) -> int:
    values = entry["MessageAttributes"].items()
    attributes = sum(len(name) + 6 + len(value["StringValue"].encode()) for name, value in values)
    return len(entry["MessageBody"].encode()) + attributes


def _text(data: bytes) -> tuple[str, dict[str, str]]:
    """Write a body as text that the service takes: characters of XML, or base64."""
    with suppress(UnicodeDecodeError):
        text = data.decode()
        if text and not _NOT_XML.search(text):
            return text, {}
    return base64.b64encode(data).decode() or " ", {CODED: "base64"}


def _token(text: str) -> str:
    """Make an identifier that the service takes: 128 characters, no spaces."""
    if re.fullmatch(r"[!-~]{1,128}", text):
        return text
    return hashlib.sha256(text.encode()).hexdigest()
