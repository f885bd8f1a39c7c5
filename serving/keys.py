"""API keys: a file of their hashes and limits, how it is changed, and how a running server follows it."""

import contextlib
import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from foundation.config import StrictModel
from foundation.errors import UserError
from foundation.files import fsync_folder

_PREFIX = "mtnlg-"
_SECRET_BYTES = 32
_CHECK_SECONDS = 1.0
_LARGEST_FILE = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOG = logging.getLogger("mtnlg.keys")

_Stamp = tuple[int, int, int] | None


class Key(StrictModel):
    """One key: the SHA-256 of its secret, and what it may do. A limit that is None does not bind.

    A plain hash is enough: secrets have 256 random bits, so they cannot be guessed from it.
    """

    id: str = Field(pattern=r"^[0-9a-f]{8}$")
    name: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    created: str
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    concurrent_requests: int | None = Field(default=None, ge=1)
    models: tuple[str, ...] | None = None
    revoked: str | None = None

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError("a name is 1 to 63 letters, digits, dots, dashes and underscores")
        return name


class Keys(StrictModel):
    """Every key of a file. Among those that are not revoked a name stands once."""

    format: Literal["mtnlg-keys"] = "mtnlg-keys"
    keys: tuple[Key, ...] = ()

    @model_validator(mode="after")
    def _names_stand_once(self) -> "Keys":
        names = [key.name for key in self.keys if key.revoked is None]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two keys are called {twice[0]!r}")
        ids = [key.id for key in self.keys]
        if len(set(ids)) != len(ids):
            raise ValueError("two keys have the same id")
        return self

    def find(self, secret: str) -> Key | None:
        """The key with this secret, revoked or not. It takes as long for every secret, and whatever the result."""
        digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def active(self) -> int:
        """The number of keys that are not revoked."""
        return sum(key.revoked is None for key in self.keys)


def read_keys(path: Path) -> Keys:
    """The keys in `path`. Raises UserError for a file that is missing or not one of keys."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"no key file at {path}; make one: mtnlg keys add {path} --name NAME") from None
    except OSError as error:
        raise UserError(f"cannot read the key file {path}: {error.strerror}") from None
    try:
        if len(content) > _LARGEST_FILE:
            raise ValueError(f"larger than {_LARGEST_FILE >> 20} MiB")
        return Keys.model_validate(json.loads(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path} is no key file: {where}: {first['msg']}".replace(": :", ":")) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no key file: {' '.join(str(error).split())}") from None


def add_key(
    path: Path,
    name: str,
    *,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    concurrent_requests: int | None = None,
    models: tuple[str, ...] | None = None,
) -> str:
    """Add a key to the file, which is made where there is none; returns the secret, which is kept nowhere.

    Raises UserError for a name that is taken or not plain.
    """
    secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    with _locked(path):
        before = read_keys(path) if path.exists() else Keys()
        if any(key.name == name and key.revoked is None for key in before.keys):
            raise UserError(f"{path} has a key called {name!r} already; revoke it, or take another --name")
        taken = {key.id for key in before.keys}
        try:
            key = Key(
                id=next(found for found in iter(lambda: secrets.token_hex(4), "") if found not in taken),
                name=name,
                sha256=hashlib.sha256(secret.encode()).hexdigest(),
                created=_now(),
                requests_per_minute=requests_per_minute,
                tokens_per_minute=tokens_per_minute,
                concurrent_requests=concurrent_requests,
                models=models,
            )
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            message = problem["msg"].removeprefix("Value error, ")
            raise UserError(f"--{str(problem['loc'][0]).replace('_', '-')}: {message}") from None
        _write(path, Keys(keys=(*before.keys, key)))
    return secret


def revoke_key(path: Path, name: str) -> Key:
    """Revoke the active key with this name or id; returns it. Raises UserError when there is none."""
    with _locked(path):
        before = read_keys(path)
        found = [key for key in before.keys if name in (key.name, key.id) and key.revoked is None]
        if not found:
            raise UserError(f"{path} has no active key called {name!r}; see them: mtnlg keys list {path}")
        revoked = found[0].model_copy(update={"revoked": _now()})
        _write(path, Keys(keys=tuple(revoked if key.id == revoked.id else key for key in before.keys)))
    return revoked


class KeyFile:
    """The keys of a file as they are now: looked at again at most once a second.

    A file that has become unreadable, broken or absent keeps the keys that were, and the log says so once.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read `path`. Raises UserError when it cannot be used."""
        self._path = path
        self._clock = clock
        self._stamp = _stamp(path)
        self._keys = read_keys(path)
        self._checked = clock()

    def current(self) -> Keys:
        """The keys, read again where the file has changed."""
        now = self._clock()
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            stamp = _stamp(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                self._read_again()
        return self._keys

    def _read_again(self) -> None:
        try:
            self._keys = read_keys(self._path)
        except UserError as error:
            _LOG.error("%s; the %d keys from before stay in force", error, self._keys.active())
        else:
            _LOG.warning("%s read again: %d active keys", self._path, self._keys.active())


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _write(path: Path, keys: Keys) -> None:
    """Replace the file as a whole; nobody but its owner ever could read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    content = json.dumps(keys.model_dump(mode="json"), indent=2) + "\n"
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write the key file {path}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep two commands from losing each other's change: a lock on the folder, so that no file is left behind."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot use the folder of {path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
