"""Package indexes: which one is used, and whether it can be reached. One short request each, tried twice."""

import configparser
import contextlib
import http.client
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

PYPI = "https://pypi.org/simple"
TRIES = 2
TIMEOUT_S = 10.0


def unreachable_index(*, uv: bool) -> Iterator[str]:
    """A line where the index of packages cannot be reached, and no other source of packages is configured."""
    settings = configured(uv=uv)
    if settings.get("no-index") or settings.get("find-links"):
        return  # packages lie on a disk: whether they suffice shows later
    url = settings.get("index-url", PYPI)
    reason = unreachable(f"{url.rstrip('/')}/pip/")
    if reason:
        other = "UV_DEFAULT_INDEX" if uv else "PIP_INDEX_URL"
        yield (
            f"{without_password(url)} cannot be reached ({reason}): check the network, https_proxy, or name a mirror "
            f"with {other}=URL (CHECK=no goes on without this check)"
        )


def configured(*, uv: bool) -> dict[str, str]:
    """The settings of pip (or of uv) that say where packages come from: index-url, find-links, no-index."""
    names = ("UV_DEFAULT_INDEX", "UV_INDEX_URL") if uv else ("PIP_INDEX_URL",)
    found = {"index-url": next((os.environ[name] for name in names if os.environ.get(name)), "")}
    prefix = "UV" if uv else "PIP"
    for key, name in (("find-links", f"{prefix}_FIND_LINKS"), ("no-index", f"{prefix}_NO_INDEX")):
        found[key] = os.environ.get(name, "")
    if not uv:
        for key, value in _pip_settings():
            if key in found and not found[key]:
                found[key] = value
    return {key: value for key, value in found.items() if value}


def _pip_settings() -> Iterator[tuple[str, str]]:
    """The options of pip's configuration files, as far as they say where packages come from: those that count first."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    if done.returncode == 0:
        for line in done.stdout.splitlines():
            name, _, value = line.partition("=")
            yield name.rpartition(".")[2], value.strip("'\"")
        return
    # Debian's Python has no pip; the environment's will read these.
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pip/pip.conf"
    named = [Path(each)] if (each := os.environ.get("PIP_CONFIG_FILE")) else []
    if named == [Path(os.devnull)]:
        return  # as pip: no file at all
    for path in (*named, own, Path.home() / ".pip/pip.conf", Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf")):
        parser = configparser.RawConfigParser()
        with contextlib.suppress(OSError, configparser.Error, UnicodeError):
            parser.read(path, encoding="utf-8")
            for section in ("install", "global"):
                if parser.has_section(section):
                    yield from parser.items(section)


def unreachable(url: str) -> str | None:
    """Why ``url`` gives no answer, in some words; None where it does. A path or ``file:`` is looked up on the disk."""
    try:
        parts = urllib.parse.urlsplit(url)
        request = urllib.request.Request(without_password(url), method="HEAD") if parts.scheme else None
    except ValueError as error:
        return f"it is no address: {error}"
    if request is None or parts.scheme == "file":
        path = Path(urllib.request.url2pathname(parts.path))
        return None if path.exists() else f"{path} does not exist"
    user = parts.username
    if user:
        import base64

        pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    reason = ""
    for number in range(TRIES):
        if number:
            time.sleep(1)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=_tls()):
                return None
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            if error.code in (401, 403, 405, 407):
                return None  # it is there: pip may have a password for it, and asks otherwise than by HEAD
            if error.code < 500:
                return reason
        except ssl.SSLCertVerificationError:
            return None  # pip may have other certificates
        except (OSError, ValueError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, ssl.SSLCertVerificationError):
                return None
            reason = " ".join(str(getattr(cause, "strerror", None) or cause).split())
    return reason


def _tls() -> ssl.SSLContext:
    named = [os.environ.get(name, "") for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")]
    file = next((each for each in named if each and os.path.isfile(each)), None)
    return ssl.create_default_context(cafile=file)


def without_password(url: str) -> str:
    """The address as messages may show it."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
