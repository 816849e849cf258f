-- One current row per retry, and the append-only history of its transitions.

create table retry (
    id              uuid primary key,
    message_id      text,
    queue           text        not null,
    exchange        text        not null default '',
    routing_key     text        not null default '',
    state           text        not null,
    round           integer     not null,
    retry_count     integer     not null default 0,
    max_retries     integer,
    policy          text,
    error_class     text,
    error_type      text,
    error_reason    text,
    first_failed_at timestamptz not null default clock_timestamp(),
    claimed_at      timestamptz,
    claimed_by      text,
    tier            text,
    delay_ms        bigint,
    due_at          timestamptz,
    returned_at     timestamptz,
    drift_ms        integer,
    body            bytea,
    properties      bytea,
    updated_at      timestamptz not null default clock_timestamp()
);
comment on table retry is 'One row per retry: where it stands now, and what is needed to rebuild its message.';
comment on column retry.round is 'The round it is in: one pass from request through delay to return.';
comment on column retry.properties is 'The AMQP properties as they were on the wire, headers included.';

create index retry_due on retry (due_at) where state in ('scheduled', 'held', 'unroutable');
create index retry_by_state on retry (state, queue);
create index retry_by_message_id on retry (message_id) where message_id is not null;

create table transition (
    id       bigint      generated always as identity primary key,
    retry_id uuid        not null,
    round    integer     not null,
    state    text        not null,
    at       timestamptz not null default clock_timestamp(),
    actor    text        not null,
    reason   text,
    detail   jsonb
);
comment on table transition is 'Append-only: every step of every retry, and the notes duplicate, overdue and recovered.';
create index transition_of_retry on transition (retry_id, id);
create index transition_by_state on transition (state, at);
