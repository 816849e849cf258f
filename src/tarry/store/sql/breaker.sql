-- name: breakers
-- All breakers that have been open.
select destination, state, since, wait, probe_at, step_at, policy, reason, pause_id::text, forced_by, forced_reason, forced_until
  from breaker
 order by destination;

-- name: one_change_of_breaker
-- One change of this breaker at a time, until the end of the transaction: also of one that has no row yet.
select pg_advisory_xact_lock(%(number)s, hashtext(%(destination)s));

-- name: lock_breaker
-- One of them, locked against changes until the end of the transaction.
select destination, state, since, wait, probe_at, step_at, policy, reason, pause_id::text, forced_by, forced_reason, forced_until
  from breaker
 where destination = %(destination)s
   for update;

-- name: breakers_not_closed
-- Destinations that a breaker holds or releases, and its state.
select destination, state from breaker where state <> 'closed';

-- name: set_breaker
-- The new state of a breaker.
insert into breaker as b (destination, state, wait, probe_at, step_at, policy, reason, pause_id, forced_by, forced_reason,
                          forced_until)
values (%(destination)s, %(state)s, %(wait)s, %(probe_at)s, clock_timestamp(), %(policy)s, %(reason)s, %(pause_id)s,
        %(forced_by)s, %(forced_reason)s, clock_timestamp() + %(lasts)s::interval)
    on conflict (destination) do update
   set state         = excluded.state,
       since         = clock_timestamp(),
       wait          = coalesce(excluded.wait, b.wait),
       probe_at      = excluded.probe_at,
       step_at       = excluded.step_at,
       policy        = excluded.policy,
       reason        = excluded.reason,
       pause_id      = excluded.pause_id,
       forced_by     = excluded.forced_by,
       forced_reason = excluded.forced_reason,
       forced_until  = excluded.forced_until;

-- name: free_breaker
-- Nobody keeps it open or closed any more. One that is open, also by itself, becomes half-open; one that was kept closed
-- counts from now.
update breaker
   set forced_by = null, forced_reason = null, forced_until = null, since = clock_timestamp(),
       probe_at = case state when 'open' then clock_timestamp() end
 where destination = %(destination)s and (forced_by is not null or state = 'open');

-- name: drop_breaker
-- A closed breaker of a destination whose policies have none any more.
delete from breaker where destination = %(destination)s and state = 'closed';

-- name: breaker_rate
-- The release of a closing breaker goes on at this rate.
with stepped as (
    update breaker set step_at = clock_timestamp() where destination = %(destination)s and state = 'closing'
 returning destination
)
update paused_destination as paused
   set rate = %(rate)s, updated_at = clock_timestamp()
  from stepped
 where paused.destination = stepped.destination and paused.state = 'releasing' and paused.by_breaker;

-- name: add_breaker_counts
-- What one router has counted since it last did this.
insert into breaker_count (destination, returned, failed)
select * from unnest(%(destinations)s::text[], %(returned)s::int[], %(failed)s::int[]);

-- name: counted_lately
-- Destinations with counts. Steps through the index from one destination to the next.
with recursive found as (
    (select destination from breaker_count order by destination limit 1)
     union all
    select next.destination
      from found
     cross join lateral (select destination
                           from breaker_count
                          where breaker_count.destination > found.destination
                          order by destination
                          limit 1) as next
)
select destination from found;

-- name: breaker_counts
-- What has been counted for these destinations, each in a time of its own and not before its last change of state; and
-- the time now.
select wanted.destination, coalesce(sum(returned), 0), coalesce(sum(failed), 0), clock_timestamp()
  from unnest(%(destinations)s::text[], %(within)s::interval[], %(since)s::timestamptz[]) as wanted (destination, within, since)
  left join breaker_count as counted
         on counted.destination = wanted.destination
        and counted.at > greatest(clock_timestamp() - wanted.within, wanted.since)
 group by wanted.destination;

-- name: forget_breaker_counts
-- Counts that are older than any breaker needs.
delete from breaker_count where at < clock_timestamp() - %(older_than)s::interval;

-- name: patterns_of_pauses
-- The patterns of operators' pauses of destinations, except those from which this one was resumed.
select pattern
  from pause
 where scope = 'queue' and ended_at is null
   and not exists (select from pause_exception where pause_id = pause.id and destination = %(destination)s);
