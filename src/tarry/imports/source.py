"""A Postgres table whose rows wait for a retry: its columns, its rows, and which of them were imported.

The table itself is only read. Which rows were imported is in a table beside it, `tarry_imported`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import psycopg
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from tarry.errors import SettingsError, SourceError
from tarry.imports.row import TEXTS, ImportRow

Connection = psycopg.AsyncConnection[TupleRow]

MARKS = "tarry_imported"
"""The table with the keys of imported rows."""
SOURCES = "tarry_import_sources"
"""The table with a random id for each source: rows of two databases must never have the same retry id."""

S0 = {
    "key": "id",
    "payload": "original_payload",
    "queue": "original_queue",
    "due": "next_retry_at",
    "retry_count": "retry_count",
    "message_id": "message_id",
    "max_retries": "max_retries",
    "content_type": "content_type",
    "headers": "headers",
    "original_exchange": "original_exchange",
    "original_routing_key": "original_routing_key",
    "error_type": "error_type",
    "error_reason": "error_reason",
    "priority": "priority",
    "job_type": "job_type",
    "owner": "owner",
}
"""The columns of a usual table. Those that are not required are used if the table has them."""

REQUIRED = ("key", "payload", "queue", "due")
STATES = ("status", "state")
MOST_VALUES = 8

_BYTES, _JSON, _INTEGERS = {"bytea"}, {"json", "jsonb"}, {"int2", "int4", "int8"}
_ZONED, _ZONELESS = {"timestamptz"}, {"timestamp"}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Which rows of which table wait, and what its columns mean."""

    table: str
    mapping: Mapping[str, str] = field(default_factory=dict)
    """Fields to columns, where they differ from the usual ones; an empty column leaves a field out."""
    where: str | None = None
    queue: str | None = None
    """The queue of all rows, if no column has it."""
    zone: str | None = None
    """The time zone of due times without one."""
    counted: bool = False
    """Whether the retry count includes the retry that a row waits for."""


class QueueShare(NamedTuple):
    """The waiting rows of one queue."""

    queue: str | None
    rows: int
    first_due: datetime | None
    last_due: datetime | None
    overdue: int


@dataclass(frozen=True, slots=True)
class ImportSource:
    """An open table. Two sessions: one reads all rows in one snapshot, one records what was imported."""

    options: SourceOptions
    reader: Connection
    writer: Connection
    place: tuple[str, str]
    """Schema and name."""
    columns: Mapping[str, str]
    """Fields to columns."""
    types: Mapping[str, str]
    """Columns to the names of their types."""

    @property
    def name(self) -> str:
        return ".".join(self.place)

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str, options: SourceOptions) -> AsyncIterator[ImportSource]:
        with explained_errors():
            async with await _connect(dsn) as reader, await _connect(dsn) as writer:
                place = await _place(reader, options.table)
                types = await _types(reader, place)
                columns = _columns(options, types, ".".join(place))
                source = cls(options, reader, writer, place, columns, types)
                await source._check_states()
                await source._check_keys()
                yield source

    async def shares(self) -> list[QueueShare]:
        """The waiting rows by queue, the largest first. Those that were imported do not count."""
        due = self._due_time()
        query = SQL(
            "select {queue}, count(*), min({due}), max({due}), count(*) filter (where {due} <= now()) "
            "from {table} as source where {waiting} group by 1 order by 2 desc, 1"
        ).format(queue=self._queue(), due=due, table=self._table, waiting=await self._waiting())
        return [QueueShare(*row) for row in await (await self.reader.execute(query)).fetchall()]

    async def imported(self) -> int:
        """How many rows were imported before."""
        if not await self._has_marks():
            return 0
        query = SQL("select count(*) from {} where source = {}").format(self._marks, Literal(self.name))
        return int((await _one(self.reader, query))[0])

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Makes the tables for the marks, and holds the lock of this source. Two imports would send rows twice."""
        key = Literal(f"tarry import {self.name}")
        (held,) = await _one(self.writer, SQL("select pg_try_advisory_lock(hashtextextended({}, 0))").format(key))
        if not held:
            raise SourceError(f"Another import of {self.name} is running: wait for it, or stop it.")
        await self._make_marks()
        yield

    async def identity(self) -> str:
        """A random id that this source keeps."""
        insert = SQL("insert into {} (source, id) values ({}, {}) on conflict do nothing").format(
            self._sources, Literal(self.name), Literal(str(uuid.uuid4()))
        )
        await self.writer.execute(insert)
        read = SQL("select id::text from {} where source = {}").format(self._sources, Literal(self.name))
        (found,) = await _one(self.writer, read)
        return str(found)

    async def rows(self, batch: int) -> AsyncIterator[list[ImportRow]]:
        """All waiting rows of one snapshot, those that are due first first, in batches."""
        query = SQL("select {fields} from {table} as source where {waiting} order by {due}, {key}").format(
            fields=SQL(", ").join(self._selected()),
            table=self._table,
            waiting=await self._waiting(),
            due=self._column("due"),
            key=self._column("key"),
        )
        async with self.reader.transaction(), self.reader.cursor(name="tarry_import") as cursor:
            await cursor.execute(query)
            while found := await cursor.fetchmany(batch):
                yield [self._row(row) for row in found]

    async def mark(self, keys: Sequence[str]) -> None:
        """Records rows as imported; durable when it returns."""
        insert = SQL(
            "insert into {} (source, key) select {}, key from unnest({}::text[]) as key on conflict do nothing"
        ).format(self._marks, Literal(self.name), Literal(list(keys)))
        await self.writer.execute(insert)

    @property
    def _table(self) -> Composable:
        return Identifier(*self.place)

    @property
    def _marks(self) -> Composable:
        return Identifier(self.place[0], MARKS)

    @property
    def _sources(self) -> Composable:
        return Identifier(self.place[0], SOURCES)

    def _column(self, name: str) -> Composable:
        return Identifier("source", self.columns[name])

    def _queue(self) -> Composable:
        return self._text("queue") if "queue" in self.columns else Literal(self.options.queue)

    def _text(self, name: str) -> Composable:
        return SQL("{}::text").format(self._column(name))

    def _due_time(self) -> Composable:
        """The due time as a timestamptz."""
        column, kind = self._column("due"), self.types[self.columns["due"]]
        if kind in _INTEGERS:
            return SQL("to_timestamp({} / 1000.0)").format(column)
        if kind in _ZONELESS:
            return SQL("({} at time zone {})").format(column, Literal(self.options.zone))
        return column

    def _selected(self) -> Iterator[Composable]:
        yield self._text("key")
        yield SQL("ceil(extract(epoch from {}) * 1000)::bigint").format(self._due_time())
        yield self._queue()
        payload = self._column("payload")
        yield payload if self.types[self.columns["payload"]] in _BYTES else SQL("{}::text").format(payload)
        yield SQL("{}::int").format(self._column("retry_count")) if "retry_count" in self.columns else Literal(0)
        for name in self._extra():
            yield self._column(name) if name not in TEXTS else self._text(name)

    def _extra(self) -> list[str]:
        fixed = {*REQUIRED, "retry_count"}
        return [name for name in self.columns if name not in fixed]

    def _row(self, row: TupleRow) -> ImportRow:
        key, due_ms, queue, payload, count, *values = row
        raw = payload.encode() if isinstance(payload, str) else payload
        fields = dict(zip(self._extra(), values, strict=True))
        if isinstance(fields.get("headers"), str):
            fields["headers"] = _json(fields["headers"])
        used = int(count or 0) + (not self.options.counted)
        return ImportRow(str(key), due_ms, queue, None if raw is None else bytes(raw), used, fields)

    async def _waiting(self) -> Composable:
        """The condition for rows that wait and were not imported."""
        given = SQL(self.options.where or "true")
        if not await self._has_marks():
            return SQL("({})").format(given)
        return SQL(
            "({given}) and not exists (select from {marks} as mark where mark.source = {name} and mark.key = {key})"
        ).format(given=given, marks=self._marks, name=Literal(self.name), key=self._text("key"))

    async def _has_marks(self) -> bool:
        query = SQL("select to_regclass({}) is not null").format(Literal(_quoted(self.place[0], MARKS)))
        return bool((await _one(self.reader, query))[0])

    async def _make_marks(self) -> None:
        marks = SQL(
            "create table if not exists {} (source text, key text, imported_at timestamptz not null default now(), "
            "primary key (source, key))"
        ).format(self._marks)
        sources = SQL("create table if not exists {} (source text primary key, id uuid not null)").format(self._sources)
        for statement in (marks, sources):
            try:
                await self.writer.execute(statement)
            except psycopg.errors.InsufficientPrivilege as error:
                made = statement.as_string(self.writer)
                raise SourceError(
                    f"{self.name}: the import records beside the table which rows it has moved, and this user may not "
                    f"create a table there. Have it created, with the right to select and insert: {made}"
                ) from error

    async def _check_states(self) -> None:
        """A table with a state usually keeps rows that are over. Importing those would repeat finished work."""
        found = next((name for name in STATES if name in self.types), None)
        if found is None or self.options.where is not None:
            return
        query = SQL("select {column}::text, count(*) from {table} group by 1 order by 2 desc limit {most}").format(
            column=Identifier(found), table=self._table, most=Literal(MOST_VALUES)
        )
        values = [f"{value} ({rows:,})" for value, rows in await (await self.reader.execute(query)).fetchall()]
        raise SettingsError(
            f"{self.name} has a column {found} ({', '.join(values) or 'empty'}): say which rows wait, for example "
            f"--where \"{found} = 'pending'\"; --where true takes all."
        )

    async def _check_keys(self) -> None:
        """Of two rows with one key, only one would be imported."""
        query = SQL("select count(*) - count(distinct {key}) from {table} as source").format(
            key=self._text("key"), table=self._table
        )
        (repeated,) = await _one(self.reader, query)
        if repeated:
            raise SettingsError(
                f"{self.name}: {repeated:,} rows have no {self.columns['key']} of their own: name a column whose "
                "values are unique, with --map key=COLUMN."
            )


async def _connect(dsn: str) -> Connection:
    return await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, application_name="tarry import", connect_timeout=5, prepare_threshold=None
    )


async def _one(connection: Connection, query: Composed) -> TupleRow:
    row: TupleRow | None = await (await connection.execute(query)).fetchone()
    if row is None:
        raise SourceError("Postgres gave no answer to a question that has one.")
    return row


async def _place(connection: Connection, table: str) -> tuple[str, str]:
    query = SQL(
        "select nspname::text, relname::text from pg_class join pg_namespace as n on n.oid = relnamespace "
        "where pg_class.oid = to_regclass({})"
    ).format(Literal(table))
    row = await (await connection.execute(query)).fetchone()
    if row is None:
        raise SettingsError(f"There is no table {table} in the database {connection.info.dbname}.")
    return row[0], row[1]


async def _types(connection: Connection, place: tuple[str, str]) -> dict[str, str]:
    query = SQL(
        "select attname::text, typname::text from pg_attribute join pg_type on pg_type.oid = atttypid "
        "where attrelid = to_regclass({}) and attnum > 0 and not attisdropped order by attnum"
    ).format(Literal(_quoted(*place)))
    return dict(await (await connection.execute(query)).fetchall())


def _columns(options: SourceOptions, types: Mapping[str, str], table: str) -> dict[str, str]:
    """Fields to columns. Raises SettingsError if one is not there, or cannot be read."""
    for name, column in options.mapping.items():
        if name not in S0:
            raise SettingsError(f"--map {name}={column}: {name} is not a field. Use one of {', '.join(S0)}.")
        if column and column not in types:
            raise SettingsError(f"--map {name}={column}: {table} has no column {column}. It has {', '.join(types)}.")
    wanted = {**S0, **options.mapping}
    if options.queue is not None:
        wanted["queue"] = ""
    found = {name: column for name, column in wanted.items() if column in types}
    for name in REQUIRED:
        if name not in found and not (name == "queue" and options.queue is not None):
            or_queue = ", or give --queue" if name == "queue" else ""
            raise SettingsError(
                f"{table} has no column {S0[name]} for the {name}: name it with --map {name}=COLUMN{or_queue}. "
                f"It has {', '.join(types)}."
            )
    _check_due(options, found["due"], types[found["due"]])
    return found


def _check_due(options: SourceOptions, column: str, kind: str) -> None:
    if kind not in _ZONED | _ZONELESS | _INTEGERS:
        raise SettingsError(
            f"The column {column} has the type {kind}: a due time is a timestamp, or a number of milliseconds since "
            "1970."
        )
    if kind in _ZONELESS and options.zone is None:
        raise SettingsError(
            f"The due times in {column} have no time zone: give the one that they were written in, for example "
            "--zone UTC. With a wrong one, messages come early or late."
        )
    try:
        datetime.now(UTC).astimezone(ZoneInfo(options.zone or "UTC"))
    except (ValueError, KeyError, OSError):
        raise SettingsError(
            f"--zone {options.zone}: there is no such time zone. Use a name such as Europe/Zagreb."
        ) from None


def _quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@contextmanager
def explained_errors() -> Iterator[None]:
    """Converts errors of psycopg to SourceError, or to SettingsError if the condition is wrong."""
    try:
        yield
    except (psycopg.errors.SyntaxError, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedFunction) as error:
        raise SettingsError(
            f"Postgres refused the question for the waiting rows, look at --where: {_line(error)}"
        ) from error
    except psycopg.Error as error:
        raise SourceError(f"The database of the table: {_line(error)}") from error


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."
