"""The socket that the server listens on, and the certificate for it.

Tested in tests/serve/test_listening.py, tests/serve/test_life.py.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
import stat
from pathlib import Path

from slm.data.errors import UserError
from slm.serve.config import ServeConfig


class Place:
    """Where clients find the server. ``private``: whether other machines cannot reach it."""

    def __init__(self, config: ServeConfig, listener: socket.socket) -> None:
        options = config.serve
        self.host, self.unix_socket, self.pages = config.host, options.unix_socket, options.ui
        self.private = self.unix_socket is not None or _is_loopback(config.host)
        scheme = "http" if options.cert is None else "https"
        shown = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        if self.unix_socket is None:
            port = listener.getsockname()[1]
            self.url = f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{port}{options.root_path}"
        else:
            self.url = f"{scheme}://localhost{options.root_path}"


def check_certificate(cert: str, key_pem: str) -> None:
    """Raises ``UserError`` for files that make no TLS server."""
    for name, path in (("serve.cert", cert), ("serve.key_pem", key_pem)):
        if not Path(path).is_file():
            raise UserError(f"{name}={path} is no file; give a PEM file")
    try:
        # Without a password: the server starts without anybody to ask for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key_pem, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"serve.cert={cert} and serve.key_pem={key_pem} do not work together: {reason}; "
            "give a PEM certificate (with its chain) and its private key without a password"
        ) from None


def listen_on_path(path: Path) -> socket.socket:
    """A listening Unix socket, which only this user may use. One that a server has left behind is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            if _answers(path):
                raise UserError(f"a server listens on serve.unix_socket={path} already; choose another path")
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"serve.unix_socket={path} is a file already; choose another path") from None
        raise UserError(f"serve.unix_socket={path} cannot be made: {error.strerror or error}") from None
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            pass
        return True


def is_name(host: str) -> bool:
    """Whether a host is a name and no address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return bool(host)
    return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. It is bound before the model is loaded, so that a port in use is reported at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns off Nagle's algorithm only where the protocol is named. With it, each part of an answer after
        # the first would wait for the client's delayed acknowledgment: 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Listening now makes a second server on this port fail, even while the first is still loading.
        listener.listen()
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"host={host} is not known ({reason}); use 127.0.0.1 or 0.0.0.0") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} on {host} is in use; choose another with port=...") from None
        if error.errno == errno.EACCES:
            raise UserError(f"port {port} needs more rights; choose one above 1023 with port=...") from None
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener
