-- Attempts that consumers report as started, and the recoveries of those that never ended.

create table attempt_start (
    retry_id   uuid        not null,
    round      integer     not null,
    started_at timestamptz not null,
    seen_at    timestamptz not null default clock_timestamp(),
    consumer   text,
    primary key (retry_id, round)
);
comment on table attempt_start is
    'Attempts at returned messages that have started and whose outcome is not known. Removed when the outcome is.';
comment on column attempt_start.started_at is 'By the clock of the consumer.';
comment on column attempt_start.seen_at is 'By the clock of Postgres: how long it has been running is counted from here.';
create index attempt_start_seen on attempt_start (seen_at);

create table stuck_recovery (
    retry_id     uuid        not null,
    round        integer     not null,
    sent_to      text        not null,
    actor        text        not null,
    begun_at     timestamptz not null default clock_timestamp(),
    published_at timestamptz,
    counted      boolean     not null default false,
    primary key (retry_id, round),
    constraint stuck_recovery_sent_to check (sent_to in ('queue', 'review'))
);
comment on table stuck_recovery is 'Each stuck attempt that was recovered: once, by any number of processes.';
comment on column stuck_recovery.round is 'The round of the attempt that was stuck. The recovered message is the next round, or in review.';
comment on column stuck_recovery.published_at is 'When the broker confirmed the message; null: the service publishes it again.';
comment on column stuck_recovery.counted is 'Whether the metric has counted it.';
create index stuck_recovery_open on stuck_recovery (begun_at) where published_at is null;
create index stuck_recovery_uncounted on stuck_recovery (begun_at) where not counted;
create index stuck_recovery_at on stuck_recovery (begun_at);

alter table retry add column presumed boolean not null default false;
comment on column retry.presumed is 'Whether its success was presumed, and not reported.';

do $$
-- Two more notes in the history. A partition has a constraint of its own, which would stay. The rows that exist need no
-- check: the new constraint only allows more.
declare
    allowed   text := (select pg_get_expr(conbin, conrelid) from pg_constraint
                        where conrelid = 'transition'::regclass and conname = 'transition_state');
    partition regclass;
begin
    alter table transition drop constraint transition_state;
    for partition in select inhrelid from pg_inherits where inhparent = 'transition'::regclass loop
        execute format('alter table %s drop constraint if exists transition_state', partition);
    end loop;
    execute format('alter table transition add constraint transition_state check (%s or state in (''started'', ''stuck'')) not valid',
                   allowed);
end $$;
comment on table transition is
    'Append-only: every step of every retry, and the notes duplicate, overdue, recovered, started and stuck.';
