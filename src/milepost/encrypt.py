"""A codec that encrypts: AES-256-GCM, with key ids, so that keys can be changed.

Needs the extra `crypto`. Values are written as JSON; they are sealed on their way to the database,
together with the name of the column and the key's id, which are not secret and cannot be exchanged.
"""

import base64
import binascii
import hmac
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from milepost.codec import Codec, JsonCodec
from milepost.errors import Invalid

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEYS = "MILEPOST_CODEC_KEYS"
MAGIC = b"\0mp1"
"""The first bytes of a sealed value; JSON never begins so."""
MOVED = b"\0mp!"
KEY_BYTES = 32
NONCE_BYTES = 12
_ID = re.compile(r"[A-Za-z0-9._-]{1,32}")


class EncryptingCodec(JsonCodec):
    """JSON, encrypted by the first of the given keys; the others open values stored before.

    Keys are given by their ids, as 32 bytes or as a text that `new_key()` made. Printing it shows
    ids alone. `encode` gives plain bytes: they are sealed on their way to the database, by column.
    """

    name = "aes256gcm"

    def __init__(self, keys: Mapping[str, bytes | str]) -> None:
        super().__init__()
        if not keys:
            raise Invalid("EncryptingCodec needs a key: {'2026': mp.EncryptingCodec.new_key()}")
        plain = {_check_id(id_): _plain(id_, key) for id_, key in keys.items()}
        self._ciphers = {id_: _cipher(key) for id_, key in plain.items()}
        # A key of their own, so that the one that encrypts does nothing else.
        self._markers = [hmac.digest(key, b"milepost marks", "sha256") for key in plain.values()]
        self._current = next(iter(self._ciphers))

    def __repr__(self) -> str:
        return f"EncryptingCodec({', '.join(self._ciphers)})"

    @property
    def key_ids(self) -> list[str]:
        """The ids of the keys that it opens with."""
        return sorted(self._ciphers)

    @staticmethod
    def new_key() -> str:
        """Make a key, as a text that can be kept where secrets are."""
        return base64.b64encode(os.urandom(KEY_BYTES)).decode()

    @classmethod
    def read(cls, text: str) -> "EncryptingCodec":
        """Read keys as a variable holds them: `new:KEY, old:KEY`, the one that encrypts first."""
        keys: dict[str, bytes | str] = {}
        for word in filter(None, re.split(r"[,\s]+", text)):
            id_, colon, key = word.partition(":")
            if not colon or id_ in keys:
                # The word itself is not repeated: it holds a key.
                raise Invalid(f"{KEYS}: expected id:key, id:key, with ids that differ")
            keys[id_] = key
        return cls(keys)

    def seal(self, data: bytes, *, column: str) -> bytes:
        """Encrypt the value of a column."""
        head = _head(self._current, column)
        nonce = os.urandom(NONCE_BYTES)
        return head + nonce + self._ciphers[self._current].encrypt(nonce, data, head)

    def unseal(self, data: bytes) -> tuple[bytes, str]:
        """Decrypt, and say for which column it was sealed; raise `Invalid` if that fails."""
        id_, column, end = _read_head(data)
        if id_ not in self._ciphers:
            raise Invalid(f"sealed by the key {id_!r}, which is not here: {KEYS}")
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        nonce = data[end : end + NONCE_BYTES]
        try:
            return self._ciphers[id_].decrypt(nonce, data[end + NONCE_BYTES :], data[:end]), column
        except (InvalidTag, ValueError):
            raise Invalid(
                f"the stored value was not sealed by the key {id_!r} that is here"
            ) from None

    def marks(self, data: bytes, *, column: str) -> tuple[str, ...]:
        """Fingerprint content by each key: without one it cannot be computed."""
        told = column.encode() + b"\0" + data
        return tuple(hmac.digest(key, told, "sha256").hex() for key in self._markers)

    def decode(self, data: bytes, type_: Any = Any) -> Any:
        """Decode; a value that is sealed still, such as a message's result, is opened first."""
        if data.startswith(MOVED):
            column = data[len(MOVED) :].decode()
            raise Invalid(f"the stored value was sealed for {column}: somebody moved it")
        return super().decode(self.unseal(data)[0] if is_sealed(data) else data, type_)


def is_sealed(data: bytes) -> bool:
    """Tell whether bytes are encrypted still."""
    return data.startswith(MAGIC)


def moved(column: str) -> bytes:
    """Give the stand-in for bytes that were sealed for another column than they were read from."""
    return MOVED + column.encode()


def chosen_codec(environment: Mapping[str, str]) -> Codec:
    """Choose the codec of a program that names none: plain JSON, or with the environment's keys."""
    text = environment.get(KEYS, "").strip()
    return EncryptingCodec.read(text) if text else JsonCodec()


def _check_id(id_: str) -> str:
    if not isinstance(id_, str) or not _ID.fullmatch(id_):
        raise Invalid(f"{id_!r} is no id of a key: up to 32 letters, digits, dots and dashes")
    return id_


def _cipher(key: bytes) -> "AESGCM":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise Invalid("encryption needs an extra: pip install 'milepost[crypto]'") from error
    return AESGCM(key)


def _plain(id_: str, key: bytes | str) -> bytes:
    try:
        plain = base64.b64decode(key, validate=True) if isinstance(key, str) else key
    except (binascii.Error, ValueError):
        plain = b""
    if not isinstance(plain, bytes) or len(plain) != KEY_BYTES:
        raise Invalid(f"the key {id_!r} is not {KEY_BYTES} bytes, or those in base64")
    return plain


@lru_cache(maxsize=256)
def _head(id_: str, column: str) -> bytes:
    named = (word.encode() for word in (id_, column))
    return MAGIC + b"".join(bytes([len(word)]) + word for word in named)


def _read_head(data: bytes) -> tuple[str, str, int]:
    words = []
    at = len(MAGIC)
    for _ in range(2):
        length = data[at] if at < len(data) else 0
        words.append(data[at + 1 : at + 1 + length].decode(errors="replace"))
        at += 1 + length
    return words[0], words[1], at
