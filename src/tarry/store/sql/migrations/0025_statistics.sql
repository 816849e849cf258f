-- Statistics: counts of the history by hour and by day, kept longer than the history.

create table statistic (
    span         text        not null,
    starts       timestamptz not null,
    kind         text        not null,
    queue        text        collate "C" not null default '',
    policy       text        collate "C" not null default '',
    value        text        collate "C" not null default '',
    other        boolean     not null default false,
    attempt      smallint    not null default 0,
    scheduled    integer     not null default 0,
    returned     integer     not null default 0,
    succeeded    integer     not null default 0,
    presumed     integer     not null default 0,
    failed       integer     not null default 0,
    exhausted    integer     not null default 0,
    reviewed     integer     not null default 0,
    skipped      integer     not null default 0,
    success_ms   bigint      not null default 0,
    drift_ms     bigint      not null default 0,
    success_bins integer[],
    drift_bins   integer[],
    primary key (span, starts, kind, queue, policy, value, other, attempt),
    constraint statistic_span check (span in ('hour', 'day')),
    constraint statistic_kind check (kind in ('queue', 'error', 'owner'))
);
comment on table statistic is
    'What happened in an hour or a day (UTC), counted three times: by queue, policy and attempt; by error too; by owner.';
comment on column statistic.value is 'The fingerprint of the error, or the owner; empty if there is none.';
comment on column statistic.other is
    'Whether it counts everything that has no row of its own, since the hour or day already had as many as are kept.';
comment on column statistic.attempt is 'The number of the retry, at most 32; 0 of a first failure, and by owner.';
comment on column statistic.presumed is 'Of the succeeded: presumed, and not reported.';
comment on column statistic.failed is 'Returned, and failed again.';
comment on column statistic.reviewed is 'In review for another reason than exhausted.';
comment on column statistic.success_ms is 'Of the succeeded: the sum of the times since the first failure.';
comment on column statistic.success_bins is 'How many of them took so long, as in analytics/rollups.py. Only by queue.';

create table statistic_position (
    single            boolean     primary key default true check (single),
    system_identifier bigint      not null,
    transition_xid    xid8        not null,
    last_id           bigint      not null,
    since_id          bigint      not null,
    began_at          timestamptz not null default clock_timestamp(),
    before_id         bigint      not null,
    before_day        date,
    before_retry      uuid,
    oldest_day        date,
    updated_at        timestamptz not null default clock_timestamp(),
    counted_until     timestamptz not null default clock_timestamp()
);
comment on table statistic_position is 'One row at most: which steps of the history have been counted.';
comment on column statistic_position.transition_xid is 'Every step above since_id of a transaction up to this one is counted.';
comment on column statistic_position.last_id is 'The highest id among them.';
comment on column statistic_position.since_id is 'Steps up to this id are counted, except those of the history before.';
comment on column statistic_position.before_id is
    'The history before: steps up to this id were written before counting began. They are counted day by day, the latest '
    'day first.';
comment on column statistic_position.before_day is 'The day of the history before that is being counted; null if all are.';
comment on column statistic_position.before_retry is 'Of that day, the retries up to this id are counted.';
comment on column statistic_position.counted_until is 'What was written by then is counted.';

create table statistic_error (
    queue       text        collate "C" not null,
    fingerprint text        collate "C" not null,
    error_class text,
    error_type  text,
    example     text,
    seen_at     timestamptz not null default clock_timestamp(),
    primary key (queue, fingerprint)
);
comment on table statistic_error is 'What the fingerprints of errors stand for, also after the history is deleted.';

create function tarry_add_bins(a integer[], b integer[]) returns integer[] language sql immutable strict parallel safe as $$
-- The sum of two histograms with the same bins.
select array(select x + y from unnest(a, b) with ordinality as bins (x, y, place) order by place)
$$;
create aggregate tarry_sum_bins(integer[]) (sfunc = tarry_add_bins, stype = integer[], parallel = safe);
