"""The settings: their names, defaults, validation and descriptions."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from psycopg import ProgrammingError  # only to parse an address: connections are made in `store`
from psycopg.conninfo import conninfo_to_dict
from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tarry.amqp.url import Address
from tarry.core.durations import parse_duration
from tarry.core.policy import Policy
from tarry.core.signature import Secret
from tarry.core.urls import ENCODE, BadUrlError, hides_password, split_url
from tarry.errors import SettingsError, TopologyError
from tarry.settings.tokens import Token, parse_tokens
from tarry.topology.load import load, shipped
from tarry.topology.model import NamesSection, Topology
from tarry.topology.overrides import Overrides
from tarry.topology.partial import NamesOnly, load_names

OFF = "off"


def span_of(text: str) -> timedelta | None:
    """Parses a duration: `15m`; None for `off`."""
    return None if text == OFF else timedelta(milliseconds=parse_duration(text))


def _checked(text: str) -> str:
    try:
        span = span_of(text)
    except ValueError:
        raise ValueError(f"is not a duration: use s, m, h or d, as in 15m or 30d, or `{OFF}`") from None
    if span == timedelta(0):
        raise ValueError(f"must be longer than zero; `{OFF}` switches it off")
    return text


Span = Annotated[str, AfterValidator(_checked)]
"""Validated and stored as text, so that it is displayed as it was written."""

SpanOrZero = Annotated[str, AfterValidator(lambda text: OFF if text in {"0", "0s"} else _checked(text))]
"""As `Span`; zero also switches it off."""


class Settings(BaseSettings):
    """The settings, from which docs/settings.md and `tarry config` are generated. An empty variable is not set."""

    model_config = SettingsConfigDict(extra="ignore", populate_by_name=True, env_ignore_empty=True, case_sensitive=True)

    service_name: str = Field("tarry", alias="SERVICE_NAME", description="Name of this service in logs and metrics.")
    http_host: str = Field("127.0.0.1", alias="HTTP_HOST", description="Address that HTTP listens on.")
    http_port: int = Field(8086, ge=0, le=65535, alias="HTTP_PORT", description="HTTP port; 0: any free port.")
    http_api: Literal["on", "off"] = Field(
        "on", alias="HTTP_API", description="`off` serves only health and metrics on that address."
    )
    http_request_s: int = Field(
        20,
        ge=1,
        le=3600,
        alias="HTTP_REQUEST_S",
        description="Seconds within which a request must be received completely.",
    )
    http_idle_s: int = Field(
        5, ge=1, le=3600, alias="HTTP_IDLE_S", description="Seconds that a connection may be idle between requests."
    )
    http_connections: int = Field(
        512, ge=1, le=100_000, alias="HTTP_CONNECTIONS", description="Maximum number of open connections."
    )
    api_tokens: SecretStr | None = Field(
        None,
        alias="API_TOKENS",
        description="Who may use the API: name:role:hash[:queues], …; made by `tarry token new`.",
    )
    api_rate: int = Field(
        50, ge=0, le=100_000, alias="API_RATE", description="Requests a second allowed for one caller; 0: no limit."
    )
    api_body_limit: int = Field(
        4 << 20, ge=1024, le=1 << 30, alias="API_BODY_LIMIT", description="Maximum size of a request body in bytes."
    )
    api_timeout_s: int = Field(30, ge=1, le=3600, alias="API_TIMEOUT_S", description="Timeout of a request in seconds.")
    dashboard_key: SecretStr | None = Field(
        None,
        min_length=32,
        alias="DASHBOARD_KEY",
        description="Signs the sessions of the dashboard; at least 32 random characters, the same for all services "
        "that browsers reach under one address. Not set: a new one at each start.",
    )
    manual_retry_check_url: SecretStr | None = Field(
        None,
        alias="MANUAL_RETRY_CHECK_URL",
        description="The credit check: asked before a manual retry; see control.md.",
    )
    manual_retry_check_timeout_s: int = Field(
        5, ge=1, le=300, alias="MANUAL_RETRY_CHECK_TIMEOUT_S", description="Timeout of the credit check in seconds."
    )
    rabbitmq_url: SecretStr = Field(
        SecretStr("amqp://guest:guest@localhost:5672/"), alias="RABBITMQ_URL", description="The broker, with vhost."
    )
    rabbitmq_management_url: SecretStr | None = Field(
        None, alias="RABBITMQ_MANAGEMENT_URL", description="Its management API; default: port 15672 on the same host."
    )
    rabbitmq_ca_file: str | None = Field(
        None, alias="RABBITMQ_CA_FILE", description="Certificate authority to trust for amqps and https; PEM."
    )
    database_url: SecretStr | None = Field(
        None, alias="DATABASE_URL", description="Postgres for the audit, as in postgresql://user:password@host/tarry."
    )
    topology: Path | None = Field(
        None, alias="TARRY_TOPOLOGY", description="Folder of the topology; default ./topology, else the shipped one."
    )
    retry_queue: str | None = Field(None, alias="RETRY_QUEUE", description="Overrides the topology's request queue.")
    manual_review_queue: str | None = Field(
        None, alias="MANUAL_REVIEW_QUEUE", description="Overrides the topology's review queue."
    )
    default_max_retries: int | None = Field(
        None, ge=0, le=1000, alias="DEFAULT_MAX_RETRIES", description="max_retries of the policy called `default`."
    )
    base_delay_ms: int | None = Field(
        None, ge=1, alias="BASE_DELAY_MS", description="Backoff base of the policy called `default`."
    )
    max_delay_ms: int | None = Field(
        None, ge=1, alias="MAX_DELAY_MS", description="Backoff cap of the policy called `default`."
    )
    retry_poll_interval_ms: int | str | None = Field(
        None,
        alias="RETRY_POLL_INTERVAL_MS",
        description="Accepted with a warning, and without effect: nothing polls, the broker returns each retry when it "
        "is due.",
    )
    batch_size: int = Field(
        500, ge=1, le=5000, alias="TARRY_BATCH", description="Maximum number of requests in one batch."
    )
    processes: int = Field(
        1,
        ge=1,
        le=256,
        alias="TARRY_PROCESSES",
        description="Number of router processes of one `tarry serve`; the HTTP ports count up from HTTP_PORT.",
    )
    look_every: Span = Field("1m", alias="TARRY_LOOK_EVERY", description="Interval of audit passes; `off`: never.")
    presume_after: Span = Field(
        "15m",
        alias="TARRY_PRESUME_AFTER",
        description="Time after which a return without a new failure counts as success; `off`: never.",
    )
    stuck_after: Span = Field(
        "30m",
        alias="TARRY_STUCK_AFTER",
        description="Time after which an attempt that was reported as started and has no outcome is stuck, unless its "
        "policy has `stuck_after`; `off`: never.",
    )
    recover_stuck_every: SpanOrZero = Field(
        "1m",
        alias="TARRY_RECOVER_STUCK_EVERY",
        description="Interval at which stuck attempts are recovered automatically; `off` or 0: only by an operator.",
    )
    keep_history: Span = Field(
        "30d", alias="TARRY_KEEP", description="How long finished retries are kept; `off`: forever."
    )
    keep_payloads: Span = Field(
        "off", alias="TARRY_KEEP_PAYLOADS", description="How long their payloads are kept, if shorter; `off`: as long."
    )
    keep_hourly_statistics: Span = Field(
        "60d",
        alias="TARRY_KEEP_HOURLY_STATISTICS",
        description="How long statistics by hour are kept; `off`: forever.",
    )
    keep_statistics: Span = Field(
        "730d", alias="TARRY_KEEP_STATISTICS", description="How long statistics by day are kept; `off`: forever."
    )
    largest_payload: int = Field(
        1 << 20,
        ge=0,
        alias="TARRY_LARGEST_PAYLOAD",
        description="Bytes of the largest payload that is stored; 0: none.",
    )
    webhook_allow_private: Literal["on", "off"] = Field(
        "off",
        alias="TARRY_WEBHOOK_ALLOW_PRIVATE",
        description="`on` allows all webhooks to go to private and loopback addresses; see webhooks.md.",
    )
    hook_secret: SecretStr | None = Field(
        None,
        alias="TARRY_HOOK_SECRET",
        description="Signing secret of the inbound hook, `whsec_…`; without one there is no hook. See webhooks.md.",
    )
    log_format: Literal["json", "console"] = Field("json", alias="TARRY_LOG", description="Format of log lines.")

    @field_validator("rabbitmq_url")
    @classmethod
    def _is_amqp(cls, url: SecretStr) -> SecretStr:
        _parse(url.get_secret_value())
        return url

    @field_validator("rabbitmq_management_url")
    @classmethod
    def _is_http(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            _parse("amqp://localhost", url.get_secret_value())
        return url

    @field_validator("manual_retry_check_url")
    @classmethod
    def _is_check(cls, url: SecretStr | None) -> SecretStr | None:
        """Any address: it is the operator's own configuration."""
        try:
            scheme = split_url(url.get_secret_value()).scheme if url else "http"
        except BadUrlError as error:
            raise ValueError(f"write http://host/path or https://host/path ({error})") from None
        if scheme not in {"http", "https"}:
            raise ValueError("write http://host/path or https://host/path")
        return url

    @field_validator("api_tokens", mode="before")
    @classmethod
    def _one_text(cls, tokens: object) -> object:
        """Accepts a list, which a settings file may contain."""
        return ",".join(map(str, tokens)) if isinstance(tokens, list) else tokens

    @field_validator("api_tokens")
    @classmethod
    def _are_tokens(cls, tokens: SecretStr | None) -> SecretStr | None:
        parse_tokens(tokens.get_secret_value() if tokens else "")
        return tokens

    @field_validator("hook_secret")
    @classmethod
    def _is_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None:
            Secret.parse(secret.get_secret_value())
        return secret

    @field_validator("database_url")
    @classmethod
    def _is_postgres(cls, url: SecretStr | None) -> SecretStr | None:
        """Validates the address without quoting it: the library's own message would show the password."""
        text = url.get_secret_value() if url else ""
        try:
            ports = str(conninfo_to_dict(text).get("port", "")).split(",")
        except ProgrammingError:
            ports = ["unreadable"]
        if hides_password(text) or not all(port.isdecimal() for port in ports if port):
            encode = f" ({ENCODE})" if "@" in text else ""
            raise ValueError(f"This is not a Postgres address: write postgresql://user:password@host/tarry{encode}")
        return url

    @model_validator(mode="after")
    def _delays_agree(self) -> Self:
        if self.base_delay_ms is not None and self.max_delay_ms is not None and self.max_delay_ms < self.base_delay_ms:
            raise ValueError(f"MAX_DELAY_MS ({self.max_delay_ms}) is below BASE_DELAY_MS ({self.base_delay_ms})")
        return self

    @property
    def address(self) -> Address:
        """The parsed address of the broker."""
        management = self.rabbitmq_management_url
        return Address.parse(
            self.rabbitmq_url.get_secret_value(),
            management_url=management.get_secret_value() if management else None,
            ca_file=self.rabbitmq_ca_file,
        )

    def read_topology(self) -> Topology:
        """The topology from the files, with the overrides from these settings."""
        found = self._overrides.apply(load(self.topology_folder))
        for policy in found.policies:
            _check_endpoint(policy)
        return found

    def read_names(self) -> Topology | NamesOnly:
        """The same; only the names if the files contain errors."""
        try:
            return self.read_topology()
        except TopologyError as error:
            found = load_names(self.topology_folder)
            names = self._overrides.names(found or NamesSection())
            return NamesOnly(names.broker_names, error, certain=found is not None)

    @property
    def _overrides(self) -> Overrides:
        return Overrides(
            scheduled=self.retry_queue,
            review=self.manual_review_queue,
            max_retries=self.default_max_retries,
            base_ms=self.base_delay_ms,
            cap_ms=self.max_delay_ms,
        )

    @property
    def topology_folder(self) -> Path:
        """The folder from the settings, otherwise ./topology, otherwise the shipped one."""
        if self.topology is not None:
            return self.topology
        here = Path("topology")
        return here if (here / "tarry.toml").is_file() else shipped()

    @property
    def tokens(self) -> tuple[Token, ...]:
        return parse_tokens(self.api_tokens.get_secret_value()) if self.api_tokens else ()

    @property
    def dsn(self) -> str:
        """The connection string of the audit's database; raises if it is not set."""
        if self.database_url is None:
            raise SettingsError(
                "DATABASE_URL is not set: tarry keeps its audit in Postgres. Set it, as in "
                "postgresql://user:password@host/tarry, or try tarry with `tarry demo`."
            )
        return self.database_url.get_secret_value()


def _check_endpoint(policy: Policy) -> None:
    """Raises if the environment variable of its eligibility endpoint has something else."""
    if policy.eligibility is not None:
        try:
            policy.eligibility.endpoint(os.environ)
        except ValueError as error:
            variable = f"{policy.eligibility.url_env} (environment), the eligibility endpoint of policy {policy.name}"
            raise SettingsError(f"{variable}: {error}.") from None


def _parse(url: str, management_url: str | None = None) -> None:
    try:
        Address.parse(url, management_url=management_url)
    except SettingsError as error:
        raise ValueError(str(error)) from None
