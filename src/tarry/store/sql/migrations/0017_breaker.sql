-- Circuit breakers: destinations that get no returns, because too many of them failed again.

create table breaker (
    destination   text        primary key,
    state         text        not null,
    since         timestamptz not null default clock_timestamp(),
    wait          interval,
    probe_at      timestamptz,
    step_at       timestamptz,
    policy        text,
    reason        text        not null,
    pause_id      uuid,
    forced_by     text,
    forced_reason text,
    forced_until  timestamptz,
    constraint breaker_state check (state in ('closed', 'open', 'half_open', 'closing'))
);
comment on table breaker is 'Breakers that have been open. The others are closed, and have no row.';
comment on column breaker.wait is 'How long it is open, or was open last.';
comment on column breaker.probe_at is 'While it is open: when it becomes half-open; null if not by itself.';
comment on column breaker.step_at is 'While it is closing: when the rate of the release was last changed.';
comment on column breaker.pause_id is 'The pause by which it holds its destination; null while it is closed.';
comment on column breaker.forced_by is 'Who keeps it open or closed; null if it is automatic.';
comment on column breaker.forced_until is 'Until when it is kept open; null for no end.';

create table breaker_count (
    destination text        not null,
    at          timestamptz not null default clock_timestamp(),
    returned    integer     not null,
    failed      integer     not null
);
comment on table breaker_count is
    'Returns, and failures of messages that had returned, of destinations with a breaker. Each router adds its own once a '
    'second. Kept for as long as the longest breaker counts.';
create index breaker_count_at on breaker_count (destination, at);

alter table pause drop constraint pause_scope;
alter table pause
  add constraint pause_scope
check (scope in ('queue', 'policy', 'job-type', 'automatic-retries', 'stuck-recovery', 'throttle', 'breaker'));
comment on table pause is 'A pause or a throttle that was requested, or the pause of a breaker.';

alter table paused_destination add column by_breaker boolean not null default false;
comment on column paused_destination.by_breaker is
    'Whether its breaker releases it: a probe of one message, then a rate that doubles.';
