"""How a broker proves who it is over TLS, and how we do. Its certificate is always checked, and so is its host name."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlencode

from tarry.errors import BrokerError, SettingsError

PARAMETERS = {"cacertfile": "ca_file", "certfile": "cert_file", "keyfile": "key_file"}
"""As RabbitMQ's own clients write them at the end of an address."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM; without any, what the system trusts is trusted."""

    ca_file: str | None = None
    """Whose signature is trusted, instead of the system's list."""
    cert_file: str | None = None
    """Our own certificate, for brokers that ask for one."""
    key_file: str | None = None
    """Its key, unless that is in the same file."""

    def with_query(self, query: str) -> Tls:
        """What the address says itself counts more."""
        said = parse_qs(query)
        return replace(self, **{field: said[name][-1] for name, field in PARAMETERS.items() if name in said})

    @property
    def query(self) -> str:
        found = {name: getattr(self, field) for name, field in PARAMETERS.items()}
        return urlencode({name: value for name, value in found.items() if value is not None})

    @property
    def client(self) -> str | tuple[str, str] | None:
        """Our certificate as `requests` wants it."""
        if self.cert_file is None or self.key_file is None:
            return self.cert_file
        return self.cert_file, self.key_file

    def context(self) -> ssl.SSLContext:
        """A SettingsError if a file is none, or not what it should be."""
        try:
            made = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise SettingsError(
                f"{self.ca_file}: no certificate authority can be read from it ({_why(error)}). Mend RABBITMQ_CA_FILE, "
                "or cacertfile in the address: it takes a file with PEM certificates."
            ) from error
        if self.cert_file is not None:
            try:
                made.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
            except (OSError, ValueError) as error:
                raise SettingsError(
                    f"{self.cert_file}: no certificate with its key can be read from it ({_why(error)}). Mend certfile "
                    "and keyfile in the address: they take PEM files, the key without a password."
                ) from error
        return made


def distrusted(where: object, error: ssl.SSLCertVerificationError) -> BrokerError:
    """For a person to mend: waiting does not make a certificate better."""
    return BrokerError(
        f"{where} is not trusted: {error.verify_message or _why(error)}. Set RABBITMQ_CA_FILE to the certificate "
        "authority that signed the broker's certificate, and use the host name that stands in it."
    )


def _no_password() -> str:
    """OpenSSL would ask the terminal for it, and a service has none."""
    raise ValueError("the key has a password")


def _why(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error)
