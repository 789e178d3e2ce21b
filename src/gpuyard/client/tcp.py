"""HTTP over TCP, with TLS or without."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from gpuyard.client.transport import NoDaemon
from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    import ssl

    from gpuyard.client.hosts import Host

_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_OTHER_NAME = (62, 64)
_EXPIRED, _NOT_YET = 10, 9  # openSSL's error codes
_LOOK = 5.0  # seconds for checking whether a server speaks TLS


class TcpTransport:
    advice = "check the address after --host, and whether it is https or http"

    def __init__(self, host: Host, ca: str | None = None) -> None:
        self._host, self._ca = host, ca
        self.name, self.host, self.base = host.url, host.authority, host.base
        self._context: ssl.SSLContext | None = None

    def connect(self, timeout: float) -> socket.socket:
        """A new connection, authenticated if TLS is used; raises NoDaemon."""
        host = self._host
        try:
            connection = socket.create_connection((host.name, host.port), timeout)
        except (OSError, UnicodeError) as error:
            raise NoDaemon(self._unreachable(error, timeout)) from error
        if not host.tls:
            return connection
        try:
            return self._secured(connection)
        except BaseException:
            connection.close()
            raise

    def protocol_mismatch(self) -> GpuyardError | None:
        """A server that speaks only TLS hangs up on plain HTTP without an answer."""
        if self._host.tls or not self._speaks_tls():
            return None
        return GpuyardError(f"{self.name} speaks TLS; write https:{self.name.removeprefix('http:')}")

    def _speaks_tls(self) -> bool:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # nothing is sent, so the server's identity does not matter
        context.verify_mode = ssl.CERT_NONE
        try:
            with socket.create_connection((self._host.name, self._host.port), _LOOK) as connection:
                context.wrap_socket(connection).close()
        except (OSError, UnicodeError):
            return False
        return True

    def _secured(self, connection: socket.socket) -> socket.socket:
        import ssl  # lazily: importing it takes longer than most requests

        if self._context is None:
            self._context = self._trusting()
        try:
            return self._context.wrap_socket(connection, server_hostname=self._host.name)
        except ssl.SSLCertVerificationError as error:
            raise GpuyardError(self._untrusted(error)) from error
        except ssl.SSLError as error:
            raise GpuyardError(
                f"{self.name} does not speak TLS as it should ({error.reason}); write http:// if it speaks none"
            ) from error
        except OSError as error:
            raise NoDaemon(f"{self.name} hung up; see whether gpuyard's daemon is up there") from error

    def _trusting(self) -> ssl.SSLContext:
        import ssl

        try:
            return ssl.create_default_context(cafile=self._ca)
        except FileNotFoundError as error:
            raise UserError(f"there is no file {self._ca} with certificates to trust; check --ca-file") from error
        except (ssl.SSLError, OSError) as error:
            raise UserError(f"{self._ca} holds no certificate (PEM) that can be read; check --ca-file") from error

    def _unreachable(self, error: OSError | UnicodeError, timeout: float) -> str:
        if isinstance(error, socket.gaierror | UnicodeError):
            return f"there is no machine called {self._host.name}, or its name cannot be looked up; check --host"
        if isinstance(error, TimeoutError):
            return f"nothing answers at {self.name} within {timeout:.4g} seconds; check --host, and firewalls"
        if isinstance(error, ConnectionRefusedError):
            return f"no daemon answers at {self.name}; gpuyard status, run there, tells where it listens (network)"
        return f"{self.name} cannot be reached: {error.strerror or error}; check --host, and your network"

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> str:
        code = error.verify_code
        if code in _UNKNOWN_AUTHORITY:
            known = f"none that {self._ca} names" if self._ca else "nobody whom this machine knows"
            return (
                f"{self.name} shows a certificate that is vouched for by {known}; if it is your own, get that "
                f"certificate, and: gpuyard login {self.name} --ca-file FILE"
            )
        if code in _OTHER_NAME:
            return f"{self.name} shows a certificate for another name than {self._host.name}; reach it by its own name"
        if code == _EXPIRED:
            return f"the certificate of {self.name} has expired; its admin has to renew it"
        if code == _NOT_YET:
            return f"the certificate of {self.name} does not hold yet; is the clock of this machine right?"
        return f"the certificate of {self.name} cannot be trusted: {error.verify_message}"
