-- Calls of the HTTP API that came with an Idempotency-Key, and how they were answered.

create table api_call (
    caller      text        not null,
    key         text        not null,
    fingerprint text        not null,
    started_at  timestamptz not null default clock_timestamp(),
    finished_at timestamptz,
    status      integer,
    media_type  text,
    body        bytea,
    primary key (caller, key)
);
comment on table api_call is 'One row per key of a caller, kept for a day: the same call again gets the same answer.';
comment on column api_call.fingerprint is 'Of the request, to tell the same call from another one under the same key.';
comment on column api_call.finished_at is 'Null while it is under way, or was cut off.';
create index api_call_old on api_call (started_at);
