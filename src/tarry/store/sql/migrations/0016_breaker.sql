-- Throttles: at most so many returns a second to a destination.

alter table pause drop constraint pause_scope;
alter table pause
  add constraint pause_scope
check (scope in ('queue', 'policy', 'job-type', 'automatic-retries', 'stuck-recovery', 'throttle'));
comment on table pause is 'A pause or a throttle that was requested.';
comment on column pause.rate is
    'Of the release when the pause expires, as canary and observe are; null for the default. Of a throttle: the most '
    'returns a second.';

alter table paused_destination
  add column throttle integer,
  add column empty_at timestamptz;
comment on column paused_destination.empty_at is
    'When the held queue of a throttled destination was last seen empty: what was due before has left it.';
comment on column paused_destination.throttle is
    'The most returns a second: while it is set, a release keeps its binding and never ends. Null if there is no limit.';
