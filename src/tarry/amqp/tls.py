"""TLS settings for broker connections. The broker's certificate and host name are always verified."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlencode

from tarry.errors import BrokerError, SettingsError

PARAMETERS = {"cacertfile": "ca_file", "certfile": "cert_file", "keyfile": "key_file"}
"""URL query parameters, named as in RabbitMQ's own clients."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. Without a CA file, the system's certificate authorities are trusted."""

    ca_file: str | None = None
    """The certificate authorities to trust instead of the system's list."""
    cert_file: str | None = None
    """The client certificate, for brokers that require one."""
    key_file: str | None = None
    """The key of the client certificate, unless it is in the same file."""

    def with_query(self, query: str) -> Tls:
        """The settings with those of a URL query, which take precedence."""
        parameters = parse_qs(query)
        return replace(
            self, **{field: parameters[name][-1] for name, field in PARAMETERS.items() if name in parameters}
        )

    @property
    def query(self) -> str:
        found = {name: getattr(self, field) for name, field in PARAMETERS.items()}
        return urlencode({name: value for name, value in found.items() if value is not None})

    @property
    def client(self) -> str | tuple[str, str] | None:
        """The client certificate in the form that `requests` expects."""
        if self.cert_file is None or self.key_file is None:
            return self.cert_file
        return self.cert_file, self.key_file

    def context(self) -> ssl.SSLContext:
        """The SSL context; raises SettingsError if a file is missing or has the wrong content."""
        try:
            made = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise SettingsError(
                f"{self.ca_file}: no certificate authority can be read from it ({_why(error)}). Set RABBITMQ_CA_FILE, "
                "or cacertfile in the address: it takes a file with PEM certificates."
            ) from error
        if self.cert_file is not None:
            try:
                made.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
            except (OSError, ValueError) as error:
                raise SettingsError(
                    f"{self.cert_file}: no certificate with its key can be read from it ({_why(error)}). Correct "
                    "certfile and keyfile in the address: they take PEM files, the key without a password."
                ) from error
        return made


def distrusted(where: object, error: ssl.SSLCertVerificationError) -> BrokerError:
    """A permanent error, not worth a retry: a person must fix the certificate or the trust settings."""
    return BrokerError(
        f"{where} is not trusted: {error.verify_message or _why(error)}. Set RABBITMQ_CA_FILE to the certificate "
        "authority that signed the broker's certificate, and use the host name in it."
    )


def _no_password() -> str:
    """Fail instead of letting OpenSSL prompt for a password on the terminal, which a service does not have."""
    raise ValueError("the key has a password")


def _why(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error)
