-- name: open_queues
-- Every queue with open retries. Steps through the index from one queue to the next.
with recursive found as (
    (select state, queue from retry order by state, queue limit 1)
     union all
    select next.state, next.queue
      from found
     cross join lateral (select retry.state, retry.queue
                           from retry
                          where (retry.state, retry.queue) > (found.state, found.queue)
                          order by retry.state, retry.queue
                          limit 1) as next
)
select distinct queue from found where state in ('claimed', 'scheduled', 'held', 'unroutable');

-- name: begin_pause
-- Record the pause that was requested. Its duration is counted by this server's clock.
insert into pause (id, scope, pattern, actor, reason, until, rate, canary, observe)
values (%(id)s, %(scope)s, %(pattern)s, %(actor)s, %(reason)s, clock_timestamp() + %(lasts)s::interval,
        %(rate)s, %(canary)s, %(observe)s)
returning until;

-- name: active_pauses
-- Pauses in force, with the destinations that have been resumed individually since.
select pause.id::text, scope, pattern, actor, reason, at, until, coalesce(until <= clock_timestamp(), false),
       coalesce(array_agg(destination) filter (where destination is not null), '{}'), rate, canary, observe
  from pause
  left join pause_exception on pause_id = pause.id
 where ended_at is null and scope <> 'throttle'
 group by pause.id
 order by at;

-- name: active_throttles
-- The same for throttles.
select pause.id::text, pattern, rate, actor, reason, at, until, coalesce(until <= clock_timestamp(), false),
       coalesce(array_agg(destination) filter (where destination is not null), '{}')
  from pause
  left join pause_exception on pause_id = pause.id
 where ended_at is null and scope = 'throttle'
 group by pause.id
 order by at;

-- name: is_paused
-- Whether a pause of this scope and name is in force. One that has expired is over, even if no service has ended it yet.
select exists (select from pause
                where scope = %(scope)s and pattern = %(pattern)s and ended_at is null
                  and coalesce(until > clock_timestamp(), true));

-- name: without_gate_keys
-- How many waiting retries lack the keys of gates, since they were scheduled by an earlier version: all, or those of one
-- policy. Counts up to a limit.
select count(*)
  from (select
          from retry
         where state = 'scheduled' and properties is not null
           and position('~policy:'::bytea in properties) = 0 and position('~policy#'::bytea in properties) = 0
           and (%(policy)s::text is null or policy = %(policy)s)
         limit %(most)s) as lacking;

-- name: has_open_of_policy
-- Whether retries of this policy are open.
select exists (select from retry where policy = %(policy)s and state in ('claimed', 'scheduled', 'held', 'unroutable'));

-- name: end_pauses
-- End these pauses.
update pause set ended_at = clock_timestamp(), ended_by = %(by)s where id = any(%(ids)s::uuid[]) and ended_at is null;

-- name: except_destinations
-- Resume these destinations while the pauses stay in force for others.
insert into pause_exception (pause_id, destination)
select pause_id, destination from unnest(%(ids)s::uuid[]) as p (pause_id), unnest(%(destinations)s::text[]) as d (destination)
    on conflict do nothing;

-- name: pause_destination
-- This destination is to be held from now on; a release of it that is under way ends.
insert into paused_destination as paused (destination, kind, name, state)
values (%(destination)s, %(kind)s, %(name)s, 'holding')
    on conflict (destination) do update
   set state       = 'holding',
       state_since = clock_timestamp(),
       since       = case paused.state when 'over' then clock_timestamp() else paused.since end,
       released    = case paused.state when 'over' then 0 else paused.released end,
       stage       = 0,
       stage_ids   = null,
       stage_queues = null,
       by_breaker  = false,
       problem     = null,
       updated_at  = clock_timestamp();

-- name: paused_bound
-- The broker has confirmed the binding. A problem from before the binding is cleared; a later one is kept.
update paused_destination
   set bound_at   = coalesce(bound_at, clock_timestamp()),
       problem    = case when bound_at is null then null else problem end,
       updated_at = clock_timestamp()
 where destination = %(destination)s and state <> 'over';

-- name: paused_problem
-- Record why the destination cannot be held.
update paused_destination
   set problem = %(problem)s, updated_at = clock_timestamp()
 where destination = %(destination)s and bound_at is null;

-- name: adopt_paused
-- The destination is already bound on the broker, but the store has no active row for it.
insert into paused_destination as paused (destination, kind, name, state, bound_at, problem)
values (%(destination)s, %(kind)s, %(name)s, 'holding', clock_timestamp(), %(problem)s)
    on conflict (destination) do update
   set state       = 'holding',
       state_since = clock_timestamp(),
       since       = clock_timestamp(),
       bound_at    = clock_timestamp(),
       problem     = excluded.problem,
       updated_at  = clock_timestamp()
 where paused.state = 'over';

-- name: drop_paused
-- The destination was never actually held.
update paused_destination
   set state = 'over', state_since = clock_timestamp(), bound_at = null, throttle = null, updated_at = clock_timestamp()
 where destination = %(destination)s;

-- name: paused_destinations
-- Every destination that is held or being released; if asked, with the number of its held retries. That takes seconds if
-- there are millions. Those of a queue are found in an index: there can be many destinations as well.
select destination, kind, name, state, state_since, since, bound_at, rate, canary, observe, stage, stage_since, stage_ids,
       stage_queues, released, problem,
       case when not %(counted)s then null
            when kind = 'queue'
            then (select count(*) from retry
                   where retry.state = 'held' and retry.queue = paused.destination
                     and tarry_holds(paused.kind, paused.destination, paused.name, queue, exchange, policy, properties))
            else (select count(*) from retry
                   where retry.state = 'held'
                     and tarry_holds(paused.kind, paused.destination, paused.name, queue, exchange, policy, properties)) end,
       throttle, by_breaker
  from paused_destination as paused
 where state <> 'over'
 order by destination;

-- name: patience_to_count
-- Timeout for the rest of this transaction.
select set_config('statement_timeout', '120s', true);

-- name: paused_now
-- The state of one paused destination, and since when.
select state, rate, canary, state_since, throttle from paused_destination as paused where destination = %(destination)s;

-- name: lock_paused
-- The same, locked against changes until the end of the transaction.
select state, rate, canary, state_since, throttle
  from paused_destination as paused
 where destination = %(destination)s
   for update;

-- name: throttle_destination
-- At most so many returns a second to this destination from now on. One that is neither paused nor being released gets
-- a release that never ends; any other keeps its state.
insert into paused_destination as paused (destination, kind, name, state, rate, throttle)
values (%(destination)s, %(kind)s, %(name)s, 'releasing', %(rate)s, %(throttle)s)
    on conflict (destination) do update
   set throttle    = excluded.throttle,
       state       = case paused.state when 'over' then 'releasing' else paused.state end,
       state_since = case paused.state when 'over' then clock_timestamp() else paused.state_since end,
       since       = case paused.state when 'over' then clock_timestamp() else paused.since end,
       bound_at    = case paused.state when 'over' then null else paused.bound_at end,
       rate        = case paused.state when 'over' then excluded.rate else paused.rate end,
       canary      = paused.canary and paused.state <> 'over',
       by_breaker  = paused.by_breaker and paused.state <> 'over',
       released_by = case paused.state when 'over' then null else paused.released_by end,
       released    = case paused.state when 'over' then 0 else paused.released end,
       stage       = case paused.state when 'over' then 0 else paused.stage end,
       stage_ids   = case paused.state when 'over' then null else paused.stage_ids end,
       stage_queues = case paused.state when 'over' then null else paused.stage_queues end,
       problem     = case paused.state when 'over' then null else paused.problem end,
       updated_at  = clock_timestamp();

-- name: unthrottle_destination
-- No limit any more: a release that is under way ends once the held queue is empty.
update paused_destination
   set throttle = null, updated_at = clock_timestamp()
 where destination = %(destination)s and throttle is not null;

-- name: drop_throttled
-- The destination was never actually throttled. One that was being released before goes on: at the end of its release it
-- has no binding either, and the next pass of the reconciler takes the limit away.
update paused_destination
   set state = 'over', state_since = clock_timestamp(), throttle = null, updated_at = clock_timestamp()
 where destination = %(destination)s and state = 'releasing' and bound_at is null
   and since >= (select at from pause where id = %(throttle_id)s);

-- name: throttle_caught_up
-- The held queue of a throttled destination is empty. What a person has resumed is released, and what comes due from now
-- on returns by itself, at the rate of the throttle. Retries that were held before, and that the tap should have seen by
-- now, are expected: if they do not return they become overdue.
with empty as (
    update paused_destination
       set released_by = null, rate = %(rate)s, empty_at = clock_timestamp()
     where destination = %(destination)s and throttle is not null and state = 'releasing'
 returning kind, destination, name
),
held as (
    -- Those of a queue are found in an index: each throttled destination asks every few seconds.
    select retry.id, retry.queue, retry.exchange, retry.policy, retry.properties, retry.updated_at, empty.*
      from empty
      join retry on retry.state = 'held' and retry.queue = empty.destination
     where empty.kind = 'queue'
     union all
    select retry.id, retry.queue, retry.exchange, retry.policy, retry.properties, retry.updated_at, empty.*
      from empty
      join retry on retry.state = 'held' and retry.exchange = empty.name
     where empty.kind = 'exchange'
),
overdue as (
    select id
      from held
     where updated_at < clock_timestamp() - %(seen_within)s::interval
       and tarry_holds(kind, destination, name, queue, exchange, policy, properties)
       and (select count(*) from tarry_pauses(queue, exchange, policy, properties)) = 1
     limit 10000
),
expected as (
    update retry
       set state = 'scheduled', expected_at = clock_timestamp(), updated_at = clock_timestamp()
      from overdue
     where retry.id = overdue.id and retry.state = 'held'
 returning retry.id, retry.round
)
insert into transition (retry_id, round, state, actor, reason)
select id, round, 'scheduled', %(actor)s, 'released by the throttle, and not seen to return' from expected;

-- name: release
-- The service releases the held messages of these destinations from now on; except of those that were paused or released
-- again since they were read, and of those that a breaker holds, unless it is the breaker that releases them. Returns
-- those that it releases.
update paused_destination as paused
   set state       = 'releasing',
       state_since = clock_timestamp(),
       rate        = %(rate)s,
       canary      = %(canary)s,
       observe     = %(observe)s,
       by_breaker  = %(by_breaker)s,
       released_by = %(by)s,
       stage       = 0,
       stage_since = null,
       stage_ids   = null,
       stage_queues = null,
       released    = 0,
       problem     = null,
       updated_at  = clock_timestamp()
  from unnest(%(destinations)s::text[], %(state_since)s::timestamptz[]) as known (destination, state_since)
 where paused.destination = known.destination and paused.state_since = known.state_since and paused.state <> 'over'
   and (%(by_breaker)s or not exists (select from breaker
                                       where breaker.destination = paused.destination and breaker.state <> 'closed'))
returning paused.destination;

-- name: canary_out
-- These messages are about to be released as a canary; `queues` has the readings of their queues from before.
update paused_destination
   set stage_ids = %(ids)s::jsonb, stage_queues = %(queues)s::jsonb, stage_since = clock_timestamp(),
       released = released + jsonb_array_length(%(ids)s::jsonb), updated_at = clock_timestamp()
 where destination = %(destination)s and state = 'releasing';

-- name: canary_watched
-- All messages of the canary are released: the observation time begins.
update paused_destination set stage_since = clock_timestamp() where destination = %(destination)s and state = 'releasing';

-- name: canary_queues
-- Store the readings of the canary's queues since then.
update paused_destination set stage_queues = %(queues)s::jsonb where destination = %(destination)s and state = 'releasing';

-- name: canary_look
-- For each queue that messages of the canary failed in: how many there are, how many failed again, have left the held
-- queue, were reported as successes, were cancelled or skipped; and whether the canary has been observed for the look
-- time, and also for the usual time to fail. A success that is only presumed proves nothing here.
select coalesce(canary.queue, live.queue, paused.name), count(*),
       count(*) filter (where live.round > canary.round or live.state = 'in_review'),
       count(*) filter (where live.id is null or live.round > canary.round
                           or live.state in ('cancelled', 'discarded', 'skipped')
                           or (live.returned_round >= canary.round and live.state <> 'unroutable')),
       count(*) filter (where live.round = canary.round and live.state = 'succeeded'
                          and exists (select from transition
                                       where retry_id = live.id and transition.round = canary.round
                                         and transition.state = 'succeeded' and actor = 'reported')),
       count(*) filter (where live.round = canary.round and live.state in ('cancelled', 'discarded', 'skipped')),
       bool_and(paused.stage_since + paused.observe < clock_timestamp()),
       bool_and(paused.stage_since + greatest(paused.observe, %(usual)s::interval) < clock_timestamp())
  from paused_destination as paused
 cross join lateral jsonb_to_recordset(paused.stage_ids) as canary (id uuid, round int, queue text)
  left join retry as live on live.id = canary.id
 where paused.destination = %(destination)s
 group by 1
 order by 1;

-- name: time_to_fail
-- The time from return to the next failure within which 19 of 20 retries of these queues failed again. Computed from
-- the latest failures of some hundred retries that are open or in review, so that a long history costs no more than a
-- short one.
with sample as (
    select found.id
      from unnest(%(queues)s::text[]) as q (queue),
           unnest(array['claimed', 'scheduled', 'held', 'unroutable', 'returned', 'in_review']) as s (state)
     cross join lateral (select first.id
                           from (select id, round
                                   from retry
                                  where retry.state = s.state and retry.queue = q.queue
                                  limit 5000) as first
                          where first.round > 1
                          limit 300) as found
),
failures as (
    select failed.at - returned.at as took
      from sample
      join transition as failed on failed.retry_id = sample.id and failed.state = 'claimed'
      join transition as returned on returned.retry_id = sample.id and returned.round = failed.round - 1
                                 and returned.state = 'returned' and returned.at < failed.at
     order by failed.at desc
     limit 500
)
select percentile_disc(0.95) within group (order by took) from failures;

-- name: next_stage
-- The canary has passed: go to the next stage.
update paused_destination
   set stage = %(stage)s, stage_ids = null, stage_queues = null, problem = null, updated_at = clock_timestamp()
 where destination = %(destination)s and state = 'releasing';

-- name: canary_waits
-- Record why the canary has not passed yet.
update paused_destination
   set problem = %(problem)s, updated_at = clock_timestamp()
 where destination = %(destination)s and state = 'releasing';

-- name: canary_failed
-- The canary has failed: the remaining messages stay held.
update paused_destination
   set state = 'canary_failed', state_since = clock_timestamp(), problem = %(problem)s, updated_at = clock_timestamp()
 where destination = %(destination)s and state = 'releasing';

-- name: count_released
-- Add to the number of released messages.
update paused_destination set released = released + %(more)s, updated_at = clock_timestamp() where destination = %(destination)s;

-- name: paused_unbound
-- The binding is removed: messages that come due from now on go to their destination, and only the held queue may still
-- contain some.
update paused_destination set bound_at = null, updated_at = clock_timestamp() where destination = %(destination)s;

-- name: release_over
-- The release is complete; returns how many messages were released. Retries that the tap has not seen yet are expected
-- from now on.
with ended as (
    update paused_destination
       set state = 'over', state_since = clock_timestamp(), updated_at = clock_timestamp()
     where destination = %(destination)s and state = 'releasing' and throttle is null
 returning destination, kind, name, released
),
expected as (
    update retry
       set expected_at = clock_timestamp()
      from ended
     where retry.state = 'held'
       and tarry_holds(ended.kind, ended.destination, ended.name, retry.queue, retry.exchange, retry.policy, retry.properties)
)
select released from ended;

-- name: mark_held
-- Retries that came due while their destination was held, and were not seen to return, wait in the held queue. One that
-- came due just before may have passed, so the tap is given some time to see it. One whose publish the broker has not
-- confirmed may not be on the broker at all: it is left to the resumption of the retry-now, the recovery or the job.
-- Returns the queues of those that come due with it: not of those that the tap has seen before.
with due as (
    select retry.id
      from retry
     cross join lateral tarry_pauses(retry.queue, retry.exchange, retry.policy, retry.properties) as paused
     where retry.state in ('scheduled', 'unroutable') and retry.due_at < statement_timestamp() - %(margin)s::interval
       and paused.bound_at is not null
       -- What was due some time before the held queue of a throttled destination was seen empty has left it; if that was
       -- not lately, it may have come since: after an outage of the broker, messages come late.
       and not (paused.throttle is not null and paused.state = 'releasing'
                and coalesce(paused.empty_at > retry.due_at + %(seen_within)s::interval, false)
                and paused.empty_at > statement_timestamp() - interval '1 minute')
       -- Due, but still on its way to the router, which sends it past the gates.
       and not coalesce(retry.layover_until is not null and retry.layover_round = retry.round
                        and retry.layover_due = retry.due_at, false)
       and (retry.due_at > paused.bound_at
            or greatest(retry.due_at, retry.expected_at, paused.bound_at) < statement_timestamp() - interval '15 seconds')
       and not exists (select from diversion
                        where diversion.retry_id = retry.id and diversion.round + 1 = retry.round
                          and diversion.begun_at is not null and diversion.copied_at is null)
       and not exists (select from stuck_recovery as recovery
                        where recovery.retry_id = retry.id and recovery.round + 1 = retry.round
                          and recovery.published_at is null)
       and not exists (select from review_item as item
                        where item.retry_id = retry.id and item.round = retry.round
                          and item.state in ('sending', 'unconfirmed'))
     -- By due time, which has an index of what waits: in the order of ids, the whole history would be read.
     order by retry.due_at, retry.id
     limit 10000
       for update of retry skip locked
),
moved as (
    update retry
       set state = 'held', updated_at = clock_timestamp()
      from due
     where retry.id = due.id
 returning retry.id, retry.round, retry.queue, retry.returned_round
),
noted as (
    insert into transition (retry_id, round, state, actor) select id, round, 'held', %(actor)s from moved
)
select queue from moved where returned_round < round;

-- name: set_intake
-- Set whether the routers accept requests.
insert into intake (paused, actor, reason, until)
values (%(paused)s, %(actor)s, %(reason)s, clock_timestamp() + %(lasts)s::interval)
    on conflict (single) do update
   set paused = excluded.paused, actor = excluded.actor, reason = excluded.reason, until = excluded.until,
       at = clock_timestamp();

-- name: intake
-- Whether the routers accept requests, and who set that. A pause that has expired is over, even if no service has ended
-- it yet.
select paused and coalesce(until > clock_timestamp(), true), actor, reason, at, until from intake;

-- name: expired_intake
-- Whose pause of the intake has expired and is to be ended.
select actor from intake where paused and until <= clock_timestamp();

-- name: end_intake_pause
-- End a pause of the intake that has expired, unless it was paused again since.
update intake set paused = false, actor = %(actor)s, reason = %(reason)s, until = null, at = clock_timestamp()
 where paused and until <= clock_timestamp();
