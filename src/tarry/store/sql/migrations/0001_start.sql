-- One current row per retry, and the append-only history of its transitions, in one partition for each day.

create table tarry_migration (
    name       text        primary key,
    applied_at timestamptz not null default clock_timestamp()
);
comment on table tarry_migration is 'What has been done to this schema, and when.';

create table retry (
    id              uuid        primary key,
    message_id      text,
    queue           text        not null,
    exchange        text        not null default '',
    routing_key     text        not null default '',
    state           text        not null,
    round           integer     not null,
    returned_round  integer     not null default 0,
    retry_count     integer     not null default 0,
    max_retries     integer,
    policy          text,
    error_class     text,
    error_type      text,
    error_reason    text,
    fingerprint     text,
    first_failed_at timestamptz not null default clock_timestamp(),
    claimed_at      timestamptz,
    claimed_by      text,
    tier            text,
    delay_ms        bigint,
    entered_at      timestamptz,
    due_at          timestamptz,
    expected_at     timestamptz,
    returned_at     timestamptz,
    drift_ms        integer,
    body            bytea,
    properties      bytea,
    updated_at      timestamptz not null default clock_timestamp(),
    constraint retry_state check (state in ('claimed', 'scheduled', 'returned', 'succeeded', 'in_review', 'cancelled',
                                            'held', 'unroutable', 'discarded'))
);
comment on table retry is 'One row per retry: where it stands now, and what is needed to rebuild its message.';
comment on column retry.round is 'The round it is in: one pass from request through delay to return.';
comment on column retry.returned_round is 'The latest round that the tap has seen return.';
comment on column retry.retry_count is 'Retries spent once it has returned.';
comment on column retry.fingerprint is 'The same for errors that differ only in numbers and ids.';
comment on column retry.tier is 'The queue that it waits in first.';
comment on column retry.entered_at is 'When its wait in that queue began.';
comment on column retry.expected_at is 'When the broker lets it go: its due moment, or later if it was recovered.';
comment on column retry.properties is 'The AMQP properties as they were on the wire, headers included.';

create index retry_due on retry (due_at) where state in ('scheduled', 'held', 'unroutable');
create index retry_claims on retry (claimed_at) where state = 'claimed';
create index retry_quiet on retry (returned_at) where state = 'returned';
create index retry_over on retry (updated_at) where state in ('succeeded', 'cancelled', 'discarded');
create index retry_by_state on retry (state, queue);
create index retry_by_fingerprint on retry (fingerprint) where fingerprint is not null;
create index retry_by_message_id on retry (message_id) where message_id is not null;

create sequence transition_id;

create table transition (
    id       bigint      not null default nextval('transition_id'),
    retry_id uuid        not null,
    round    integer     not null,
    state    text        not null,
    at       timestamptz not null default clock_timestamp(),
    actor    text        not null,
    reason   text,
    detail   jsonb,
    constraint transition_state check (state in ('claimed', 'scheduled', 'returned', 'succeeded', 'in_review',
                                                 'cancelled', 'held', 'unroutable', 'discarded',
                                                 'duplicate', 'overdue', 'recovered'))
) partition by range (at);
comment on table transition is 'Append-only: every step of every retry, and the notes duplicate, overdue and recovered.';
create index transition_of_retry on transition (retry_id, round);
create table transition_default partition of transition default;
comment on table transition_default is 'For days that have no partition yet, and for what outlived its own.';

create function tarry_history_stays() returns trigger language plpgsql as $$
begin
    raise exception 'transition is append-only: write a new row instead';
end $$;
create trigger append_only before update on transition for each row execute function tarry_history_stays();

create function tarry_add_partition(day date) returns boolean language plpgsql as $$
-- The partition of one day (UTC); false if it is there. What came too early for it moves over from the default one.
declare
    name  text        := 'transition_' || to_char(day, 'YYYYMMDD');
    since timestamptz := day::timestamp at time zone 'UTC';
    until timestamptz := (day + 1)::timestamp at time zone 'UTC';
begin
    if to_regclass(name) is not null then
        return false;
    end if;
    lock table transition_default in access exclusive mode;
    execute format('create table %I (like transition including defaults including constraints)', name);
    execute format('with moved as (delete from transition_default where at >= %L and at < %L returning *)
                    insert into %I select * from moved', since, until, name);
    execute format('alter table transition attach partition %I for values from (%L) to (%L)', name, since, until);
    return true;
end $$;

create function tarry_drop_partition(name text) returns void language plpgsql as $$
-- Drops a whole day. The history of what is still open outlives it, in the default partition.
begin
    lock table transition_default in access exclusive mode;
    execute format('alter table transition detach partition %I', name);
    execute format('insert into transition_default
                    select day.* from %I as day join retry on retry.id = day.retry_id
                     where retry.state in (''claimed'', ''scheduled'', ''held'', ''unroutable'', ''in_review'')', name);
    execute format('drop table %I', name);
end $$;

create table tarry_probe (at timestamptz not null);
insert into tarry_probe values (clock_timestamp());
comment on table tarry_probe is 'One row, written to when the service asks whether Postgres takes writes.';
