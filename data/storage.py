"""Files that appear whole or not at all, and files of the cache, which are checked when they are read."""

import contextlib
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from slm.data.errors import UserError

RESERVE = 256 << 20  # bytes that a cache leaves free on its disk
DIGEST_BYTES = 16


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8 so that ``path`` holds either the old content or all of the new, never a part."""
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_bytes(path: str | Path, *content: bytes, mode: int = 0o644) -> None:
    """Write the ``content`` to a temporary file next to ``path``, flush it to the disk, then rename it into place.

    ``mode``: the file's permissions. The default lets a group see results.
    """
    _atomic_write(Path(path), content, mode)


def _atomic_write(path: Path, content: Iterable[bytes], mode: int) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def fsync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_home() -> Path:
    """The folder of all files that can be made again: ``slm`` in ``$XDG_CACHE_HOME`` (unset or empty: ``~/.cache``).

    Where that would be in a home directory that cannot be written (in a container, say), it is in a folder of this
    user's for temporary files.
    """
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "slm"
    home = Path(os.path.expanduser("~")) / ".cache"
    there = next((each for each in (home, *home.parents) if os.path.isdir(each)), None)
    own = None if there and os.access(there, os.W_OK | os.X_OK) else _own_temporary_folder()
    return (own or home) / "slm"


def _own_temporary_folder() -> Path | None:
    """A folder that only this user may write: programs are started from the cache. None where there can be none."""
    folder = Path(tempfile.gettempdir()) / f"cache-of-user-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    return folder if found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022 else None


def fingerprint(values: Any) -> str:
    """A short hash of plain values."""
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def stamps(paths: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
    """The present state of files: path, size in bytes, time of the last change in nanoseconds."""
    return tuple((os.path.abspath(path), os.path.getsize(path), os.stat(path).st_mtime_ns) for path in paths)


class NoRoomError(UserError):
    """The disk has no room for a file of the cache, or its folder cannot be written."""


WITHOUT_CACHE = "data.cache=false"


def write_checked(path: Path, content: bytes, *, without: str = WITHOUT_CACHE) -> None:
    """Write ``content`` with its hash before it, atomically; NoRoomError where the disk is full or read-only.

    ``without``: the option with which no such file is needed.
    """
    digest = hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
    with _room(path, len(content) + DIGEST_BYTES, without):
        atomic_write_bytes(path, digest, content, mode=0o600)


def write_checked_file(path: Path, content: Path, *, without: str = WITHOUT_CACHE) -> None:
    """As ``write_checked``, with the content of a file, of which never more than a piece is in memory."""
    with _room(path, os.path.getsize(content) + DIGEST_BYTES, without), open(content, "rb") as file:
        found = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for piece in _pieces(file):
            found.update(piece)
        file.seek(0)
        _atomic_write(path, itertools.chain([found.digest()], _pieces(file)), 0o600)


@contextlib.contextmanager
def _room(path: Path, size: int, without: str) -> Iterator[None]:
    """Makes the folder of a file of this size; NoRoomError where the disk has no room for it, or it cannot be
    written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < size + RESERVE:
            raise NoRoomError(
                f"{path.parent} has {free / 1e9:.2f} GB free, too little for the cache: make room, name another folder "
                f"with data.cache_dir=DIR, or add {without}"
            )
        yield
    except OSError as error:
        raise NoRoomError(
            f"{path} ({size:,} bytes) cannot be written ({error.strerror or error}): make room, name another folder "
            f"with data.cache_dir=DIR, or add {without}"
        ) from error


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(1 << 20), b"")


def is_intact(path: Path) -> bool:
    """Whether a file is there as ``write_checked`` wrote it. Only a piece of it is in memory at a time."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    try:
        with open(path, "rb") as file:
            digest = file.read(DIGEST_BYTES)
            for piece in _pieces(file):
                found.update(piece)
    except OSError:
        return False
    return found.digest() == digest


def read_checked(path: Path) -> bytes | None:
    """The content that ``write_checked`` wrote; None if there is no such file or its hash does not match."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, content = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest() != digest:
        return None
    return content


def digest_of(path: str | Path) -> str:
    """The hash at the head of a file that ``write_checked`` wrote."""
    with open(path, "rb") as file:
        return file.read(DIGEST_BYTES).hex()


@contextlib.contextmanager
def locked(path: Path, *, without: str = WITHOUT_CACHE) -> Iterator[None]:
    """Hold the lock file ``path``. One process holds it at a time, and the others wait without a time limit.

    The kernel releases it when the process ends, however it ends. Raises NoRoomError if the file cannot be made.
    ``without``: the option with which no such file is needed.
    """
    from filelock import FileLock  # its import takes 40 ms, which commands without a cache need not wait for

    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise NoRoomError(
            f"{path} cannot be written ({error.strerror or error}): name another folder with data.cache_dir=DIR, or "
            f"add {without}"
        ) from error
    try:
        yield
    finally:
        lock.release()
