"""folder_at: an archive's interface to its storage.

A folder of a file system is locked by the run that writes, and files are renamed. An object store has
neither: its manifest is put only if it is still the one that was read, and a move is a copy and a
deletion.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Protocol

import pyarrow as pa

from quorumlog.errors import ConfigError, StoreFailure, the_extra

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

MANIFEST_NAME = "manifest.json"
LOCK_NAME = "lock"
TEMPORARY = ".unfinished"
OBJECTS = "s3://"


class ArchiveFolder(Protocol):
    """Names are paths below it."""

    path: str
    is_locked: bool
    """One run writes at a time; otherwise any number, and `replace_manifest` refuses all but one."""

    def make(self, name: str = "") -> None:
        """Itself, or a folder in it, where there are folders. Raises ConfigError."""
        return

    def lock(self) -> None:
        """Until `close`, where there are locks. Raises ConfigError: another run has."""
        return

    def close(self) -> None:
        """Let go of the lock."""
        return

    def names(self) -> list[str]:
        """Names of its files, without those in folders below."""

    def sizes(self, name: str) -> dict[str, int]:
        """Of the files in a folder of it, by their names there; a folder has one too."""

    def create(self, name: str) -> pa.NativeFile:
        """A new file, under a name that none has had."""

    def finish(self, name: str, file: pa.NativeFile) -> int:
        """It is whole, and durable; its bytes."""

    def exists(self, name: str) -> bool: ...

    def open(self, name: str) -> pa.NativeFile:
        """Raises FileNotFoundError, OSError."""

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        """(from, to): durable. One that is not there was moved before."""

    def delete(self, names: Sequence[str]) -> None:
        """A folder or a missing file is left alone."""

    def read_manifest(self) -> tuple[bytes, str] | None:
        """With a tag for `replace_manifest`. Raises ConfigError."""

    def replace_manifest(self, content: bytes, tag: str) -> str:
        """The new tag. `tag`: of the one that it replaces; empty: there was none. Raises ConfigError if
        it is another one by now."""


def folder_at(path: str) -> ArchiveFolder:
    """Raises ConfigError."""
    return ObjectFolder(path) if is_object(path) else LocalFolder(path)


def is_object(path: str) -> bool:
    return path.startswith(OBJECTS)


def absolute(path: str) -> str:
    """The same for a process with another working directory."""
    return path if is_object(path) else os.path.abspath(path)


class LocalFolder(ArchiveFolder):
    is_locked = True

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = -1

    def make(self, name: str = "") -> None:
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise ConfigError(f"{self.path} is a file; name a directory for the archive")
        os.makedirs(self._at(name), exist_ok=True)

    def lock(self) -> None:
        self._lock = os.open(self._at(LOCK_NAME), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ConfigError(
                f"{self.path} is being written by another archive run; wait for it"
            ) from None

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def sizes(self, name: str) -> dict[str, int]:
        sizes = {}
        with os.scandir(self._at(name)) as listed:
            for entry in listed:
                with suppress(FileNotFoundError):  # an attempt that its executor has given up
                    sizes[entry.name] = entry.stat().st_size
        return sizes

    def create(self, name: str) -> pa.NativeFile:
        with asking(self.path):
            return pa.OSFile(self._at(name), "wb")

    def finish(self, name: str, file: pa.NativeFile) -> int:
        with asking(self.path):
            file.close()
            sync_path(self._at(name))
        return os.path.getsize(self._at(name))

    def exists(self, name: str) -> bool:
        return os.path.exists(self._at(name))

    def open(self, name: str) -> pa.NativeFile:
        return pa.OSFile(self._at(name), "rb")

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        for source, target in moves:
            with suppress(FileNotFoundError):
                os.replace(self._at(source), self._at(target))
        with asking(self.path):
            for folder in {os.path.dirname(target) for _, target in moves}:
                sync_path(self._at(folder))

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(self._at(name))

    def read_manifest(self) -> tuple[bytes, str] | None:
        try:
            with open(self._at(MANIFEST_NAME), "rb") as file:
                return file.read(), ""
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise ConfigError(f"{self.path} is a file; name a directory for the archive") from None

    def replace_manifest(self, content: bytes, tag: str) -> str:
        path = self._at(MANIFEST_NAME)
        with asking(self.path):
            with open(path + TEMPORARY, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + TEMPORARY, path)
            sync_path(self.path)
        return ""

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name) if name else self.path


def sync_path(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


_URL = re.compile(
    r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/(?!\.{1,2}(?:/|$))[\w.=+-]+)*)/?", re.ASCII
)


class ObjectFolder(ArchiveFolder):
    """The environment names the store and the account: AWS_ENDPOINT_URL, AWS_REGION,
    AWS_ACCESS_KEY_ID and the others."""

    is_locked = False

    def __init__(self, path: str) -> None:
        """Raises ConfigError, which does not repeat `path`: it may contain a password."""
        parts = _URL.fullmatch(path)
        if parts is None:
            raise ConfigError(
                "an archive in an object store is named s3://BUCKET/PREFIX, of letters, digits, and"
                " _ . = + -; endpoint and credentials are the environment's, AWS_ENDPOINT_URL,"
                " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        try:
            import obstore  # noqa: F401
        except ImportError:
            raise ConfigError(f"object stores need {the_extra('s3')}") from None
        self._bucket, self._prefix = parts[1], parts[2].removeprefix("/")
        self.path = f"{OBJECTS}{self._bucket}{parts[2]}"

    def names(self) -> list[str]:
        with asking(self.path):
            found = self._store().list_with_delimiter(self._prefix or None)
        keys = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        # A store's console marks a folder by an object of its name.
        return [key.rpartition("/")[2] for key in keys if key != self._prefix]

    def sizes(self, name: str) -> dict[str, int]:
        with asking(self.path):
            found = self._store().list_with_delimiter(self._key(name))["objects"]
        below = self._key(name) + "/"
        return {e["path"].removeprefix(below): e["size"] for e in found if e["path"].startswith(below)}

    def create(self, name: str) -> pa.NativeFile:
        with asking(self.path):
            return self._file_system().open_output_stream(f"{self._bucket}/{self._key(name)}")

    def finish(self, name: str, file: pa.NativeFile) -> int:
        size = int(file.tell())
        with asking(self.path):
            try:
                file.close()
            except OSError:
                # Its answer was lost, and repeated it is refused: no other file has had this name.
                if self._size(name) != size:
                    raise
        return size

    def exists(self, name: str) -> bool:
        with asking(self.path):
            return self._size(name) >= 0

    def _size(self, name: str) -> int:
        """-1: there is no such file."""
        try:
            return self._store().head(self._key(name))["size"]
        except FileNotFoundError:
            return -1

    def open(self, name: str) -> pa.NativeFile:
        return self._file_system().open_input_file(f"{self._bucket}/{self._key(name)}")

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        with asking(self.path):
            for source, target in moves:
                with suppress(FileNotFoundError):
                    self._store().copy(self._key(source), self._key(target))
        self.delete([source for source, _ in moves])

    def delete(self, names: Sequence[str]) -> None:
        if names:
            with asking(self.path), suppress(FileNotFoundError):
                self._store().delete([self._key(name) for name in names])

    def read_manifest(self) -> tuple[bytes, str] | None:
        with asking(self.path):
            try:
                found = self._store().get(self._key(MANIFEST_NAME))
                return bytes(found.bytes()), _tag(found.meta["e_tag"])
            except FileNotFoundError as error:
                if "<Code>NoSuchBucket" in str(error):
                    raise ConfigError(f"{self.path}: there is no bucket {self._bucket}") from None
                return None

    def replace_manifest(self, content: bytes, tag: str) -> str:
        new_tag = self._put_manifest(content, tag)
        if new_tag is None:
            found = self.read_manifest()
            if found is None or found[0] != content:
                raise conflict(self.path)
            new_tag = found[1]  # the answer was lost, and the put repeated
        if not tag:
            self._check_conditions(content)
        return new_tag

    def _put_manifest(self, content: bytes, tag: str) -> str | None:
        """None: refused, since another one is there."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Literal["create"] | dict[str, str] = {"e_tag": tag} if tag else "create"
        with asking(self.path):
            try:
                put = self._store().put(
                    self._key(MANIFEST_NAME),
                    content,
                    mode=mode,  # type: ignore[arg-type]
                    use_multipart=False,
                )
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return None
            return _tag(put["e_tag"])

    def _check_conditions(self, content: bytes) -> None:
        """Raises ConfigError where a store takes a put that it has to refuse."""
        for tag, header in (("", "If-None-Match"), (f'"{0:032x}"', "If-Match")):
            if self._put_manifest(content, tag) is not None:
                raise ConfigError(
                    f"{self.path}: the store ignores {header}, so two runs at once could undo each"
                    " other. Archive to a store that honours it"
                )

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _store(self) -> S3Store:
        return _clients(self._bucket, _environment())[0]

    def _file_system(self) -> pa.fs.FileSystem:
        return _clients(self._bucket, _environment())[1]


def conflict(path: str) -> ConfigError:
    return ConfigError(
        f"{path}: another archive run has written there since this one began. Archived entries"
        " stay, and this run adds nothing more; repeat the command when no other runs"
    )


@contextmanager
def asking(path: str) -> Iterator[None]:
    """Raises StoreFailure for an error of a disk that does not name the file; if `path` is in an object
    store, ConfigError or StoreFailure for errors of it or of the network."""
    if not is_object(path):
        try:
            yield
        except OSError as error:
            if error.filename is not None or error.errno in (None, errno.ENOENT):
                raise
            raise StoreFailure(
                f"{path}: {os.strerror(error.errno)}; change that, or name another path, and repeat the"
                " command"
            ) from error
        return
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except (BaseError, OSError) as error:
        asked_machine = "//169.254." in str(error)  # for the credentials of its role
        if asked_machine or isinstance(error, PermissionDeniedError | UnauthenticatedError):
            reason = "the machine has no role that gives credentials" if asked_machine else why(error)
            raise ConfigError(
                f"{path}: {reason}. Credentials are the environment's, here and at every executor:"
                " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role of the machine"
            ) from None
        raise StoreFailure(f"{path}: {why(error)}. Archived entries stay; repeat the command") from None


def why(error: Exception) -> str:
    """Code and message of a store's answer: the rest may repeat signed data."""
    text = str(error)
    code, sentence = re.search("<Code>(.*?)</Code>", text), re.search("<Message>(.*?)</Message>", text)
    if code is not None:
        return f"{code[1]} ({sentence[1]})" if sentence is not None else code[1]
    return text.partition("\n")[0].partition("<")[0].rstrip(". :")


def _tag(tag: str | None) -> str:
    if not tag:
        raise ConfigError("the store gives no ETag, by which a manifest is known; use another store")
    return tag


def _environment() -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))


@functools.lru_cache(maxsize=8)
def _clients(bucket: str, environment: tuple[tuple[str, str], ...]) -> tuple[S3Store, pa.fs.FileSystem]:
    """obstore's and pyarrow's, with one endpoint and region. Raises ConfigError."""
    from obstore.store import S3Store
    from pyarrow.fs import S3FileSystem

    options = dict(environment)
    endpoint = options.get("AWS_ENDPOINT_URL_S3") or options.get("AWS_ENDPOINT_URL") or ""
    region = options.get("AWS_REGION") or options.get("AWS_DEFAULT_REGION") or "us-east-1"
    scheme, _, host = endpoint.rpartition("://")
    if endpoint and scheme not in ("http", "https"):
        raise ConfigError("AWS_ENDPOINT_URL is no URL; write https://HOST or https://HOST:PORT")
    if scheme == "http" and options.get("AWS_ALLOW_HTTP", "").lower() not in ("true", "1", "yes", "on"):
        raise ConfigError(
            "AWS_ENDPOINT_URL begins with http://, and the traffic can be read on the way: write"
            " https://, or set AWS_ALLOW_HTTP=true"
        )
    config: S3Config = {"region": region}
    if endpoint:
        config["endpoint"] = endpoint
    # A name that is no store's is told within half a minute.
    store = S3Store(bucket, config=config, retry_config={"retry_timeout": timedelta(seconds=30)})
    # Small parts are one put, and a run that ends in one leaves no upload begun.
    files = S3FileSystem(
        region=region,
        scheme=scheme or None,
        endpoint_override=host.rstrip("/") or None,
        allow_delayed_open=True,
    )
    return store, files
