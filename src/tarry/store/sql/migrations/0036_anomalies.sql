-- Anomalies: failure rates that were far above the usual ones.

create table anomaly (
    id           uuid        primary key default gen_random_uuid(),
    kind         text        not null,
    name         text        collate "C" not null,
    began_at     timestamptz not null default clock_timestamp(),
    ended_at     timestamptz,
    rate         float8      not null,
    usual_rate   float8      not null,
    highest_rate float8      not null,
    returned     bigint      not null,
    failed       bigint      not null,
    error        text,
    why_ended    text,
    constraint anomaly_kind check (kind in ('queue', 'policy'))
);
comment on table anomaly is
    'Failure rates far above the usual ones, of a queue, or of the queues of a policy that have few returns each.';
comment on column anomaly.ended_at is 'Null while it goes on.';
comment on column anomaly.rate is
    'The share of returns that failed again, in the hour in progress and the one before, at the last look.';
comment on column anomaly.usual_rate is 'What was usual when it began.';
comment on column anomaly.returned is 'Returns in these two hours.';
comment on column anomaly.error is 'The error of the most failures when it began.';
create unique index anomaly_open on anomaly (kind, name) where ended_at is null;
create index anomaly_ended on anomaly (ended_at) where ended_at is not null;

-- What was usual for one queue is looked up by its name.
create index statistic_of_queue on statistic (queue, starts) where span = 'hour' and kind = 'queue';
