"""Raw records as the landing table keeps them: key, version, hash and payload.

A record that cannot be used is landed too, under a key made up from its hash; consolidation says
why it cannot (H-75).
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from milepost.client import Client
from milepost.codec import check_text, limited
from milepost.errors import Invalid
from milepost.ingest.options import Field
from milepost.ingest.source import Reject, shown, stamp
from milepost.policy import storable

PLAIN_KEY_CHARACTERS = 100
SHOWN_CHARACTERS = 4_000
HASH_BYTES = 16
UNUSABLE = b"!"
"""The end of the hash of a record that could not be stored as the source gave it."""


def is_unidentified(key: str) -> bool:
    """Tell whether a key was made up, for a record whose own key or version cannot be read."""
    return key.startswith("?")


def is_unusable(digest: bytes) -> bool:
    """Tell whether the landed payload only describes the record."""
    return len(digest) > HASH_BYTES


class Landing:
    """Takes raw records apart; key and version are named fields, or functions of a record."""

    def __init__(self, client: Client, key: Field, version: Field | None) -> None:
        self._client = client
        self._key = key
        self._version = version
        self.key_name = key if isinstance(key, str) else "its key"

    def __str__(self) -> str:
        told = {"key": self._key, "version": self._version}
        return " and ".join(f"{name}={_named(field)}" for name, field in told.items() if field)

    def of(self, raw: Any) -> tuple[str, int, bytes, bytes]:
        """Give the key, version, hash and payload that a record is landed with."""
        payload, mark = self._payload(raw)
        digest = hashlib.blake2b(payload, digest_size=HASH_BYTES).digest() + mark
        try:
            return self.key_of(raw), self.version_of(raw), digest, payload
        except Reject:
            return f"?{digest.hex()}", 0, digest, payload

    def key_of(self, raw: Any) -> str:
        """Read a record's key as a text, or raise `Reject`."""
        value = _found(raw, self._key)
        if value is None or value == "":
            raise Reject(f"it has no {self.key_name}, which is its key")
        try:
            text = str(value)
        except (RecursionError, ValueError) as error:  # nested too deep, or too many digits
            raise Reject(f"{self.key_name} cannot be a key: {error}") from error
        _check_key(text, self.key_name)
        return text

    def keys_of(self, raw: Any) -> list[str]:
        """Read the key of a record that could not be landed with it, if it has one."""
        try:
            return [self.key_of(raw)]
        except Reject:
            return []

    def version_of(self, raw: Any) -> int:
        """Read a record's version as a number that grows, or raise `Reject`."""
        return 0 if self._version is None else stamp(_found(raw, self._version))

    def _payload(self, raw: Any) -> tuple[bytes, bytes]:
        codec, most = self._client.codec, self._client.settings.max_payload
        try:
            return limited(codec.encode(raw), most=most, what="a record"), b""
        except Invalid as error:
            record = storable(shown(raw))[:SHOWN_CHARACTERS]
            return codec.encode({"reason": storable(str(error)), "record": record}), UNUSABLE


def _found(raw: Any, field: Field) -> Any:
    if isinstance(field, str):
        # A dict, as most are, is known by its type in a fraction of the time.
        is_mapping = type(raw) is dict or isinstance(raw, Mapping)
        return raw.get(field) if is_mapping else getattr(raw, field, None)
    try:
        return field(raw)
    except Exception as error:
        raise Reject(f"{_named(field)} raised {type(error).__name__}: {error}") from error


def _named(field: Field) -> str:
    return repr(field) if isinstance(field, str) else getattr(field, "__name__", "a function")


def could_be_key(text: str) -> bool:
    """Tell whether a record can have that key: none was ever landed with any other."""
    try:
        _check_key(text, "key")
    except Reject:
        return False
    return bool(text)


def _check_key(text: str, name: str) -> None:
    if text.startswith("?"):
        raise Reject(f"{name}={text[:40]!r} cannot be a key: it begins with ?")
    if len(text) > PLAIN_KEY_CHARACTERS or not text.isascii() or "\0" in text:
        try:
            check_text(text, what=name)
        except Invalid as error:
            raise Reject(str(error)) from error
