-- name: open_queues
-- Every queue for which something is open, by hopping from one to the next in the index.
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
-- The wish. How long is counted by this server's clock.
insert into pause (id, pattern, actor, reason, until)
values (%(id)s, %(pattern)s, %(actor)s, %(reason)s, clock_timestamp() + %(lasts)s::interval)
returning until;

-- name: active_pauses
-- Wishes in force, with the destinations that were resumed by themselves meanwhile.
select pause.id::text, pattern, actor, reason, at, until, coalesce(until <= clock_timestamp(), false),
       coalesce(array_agg(destination) filter (where destination is not null), '{}')
  from pause
  left join pause_exception on pause_id = pause.id
 where ended_at is null
 group by pause.id
 order by at;

-- name: end_pauses
-- No longer wished.
update pause set ended_at = clock_timestamp(), ended_by = %(by)s where id = any(%(ids)s::uuid[]) and ended_at is null;

-- name: except_destinations
-- They return to normal while the pauses go on for others.
insert into pause_exception (pause_id, destination)
select pause_id, destination from unnest(%(ids)s::uuid[]) as p (pause_id), unnest(%(destinations)s::text[]) as d (destination)
    on conflict do nothing;

-- name: hold
-- From here on this destination is to be held; a release of it that is under way ends.
insert into hold (destination, kind, name, state)
values (%(destination)s, %(kind)s, %(name)s, 'holding')
    on conflict (destination) do update
   set state       = 'holding',
       state_since = clock_timestamp(),
       since       = case hold.state when 'over' then clock_timestamp() else hold.since end,
       released    = case hold.state when 'over' then 0 else hold.released end,
       stage       = 0,
       stage_ids   = null,
       stage_queues = null,
       problem     = null,
       updated_at  = clock_timestamp();

-- name: hold_bound
-- The broker has confirmed the binding. What was wrong before it is right now; what else there is to say stays.
update hold
   set bound_at   = coalesce(bound_at, clock_timestamp()),
       problem    = case when bound_at is null then null else problem end,
       updated_at = clock_timestamp()
 where destination = %(destination)s and state <> 'over';

-- name: hold_problem
-- Why it cannot be held.
update hold
   set problem = %(problem)s, updated_at = clock_timestamp()
 where destination = %(destination)s and bound_at is null;

-- name: adopt_hold
-- It is bound already, and the books have lost it.
insert into hold (destination, kind, name, state, bound_at, problem)
values (%(destination)s, %(kind)s, %(name)s, 'holding', clock_timestamp(), %(problem)s)
    on conflict (destination) do update
   set state       = 'holding',
       state_since = clock_timestamp(),
       since       = clock_timestamp(),
       bound_at    = clock_timestamp(),
       problem     = excluded.problem,
       updated_at  = clock_timestamp()
 where hold.state = 'over';

-- name: drop_hold
-- It never came to be.
update hold
   set state = 'over', state_since = clock_timestamp(), bound_at = null, updated_at = clock_timestamp()
 where destination = %(destination)s;

-- name: holds
-- Every destination that is held or being released.
select destination, kind, name, state, state_since, since, bound_at, rate, canary, look, stage, stage_since, stage_ids,
       stage_queues, released, problem,
       (select count(*) from retry
         where retry.state = 'held' and tarry_destination(queue, exchange, properties) = hold.destination)
  from hold
 where state <> 'over'
 order by destination;

-- name: hold_now
-- How one hold stands, and since when.
select state, rate, canary, state_since from hold where destination = %(destination)s;

-- name: lock_hold
-- The same, and nobody changes it until the end of the transaction.
select state, rate, canary, state_since from hold where destination = %(destination)s for update;

-- name: release
-- From here on the service lets go what is held.
update hold
   set state       = 'releasing',
       state_since = clock_timestamp(),
       rate        = %(rate)s,
       canary      = %(canary)s,
       look        = %(look)s,
       stage       = 0,
       stage_since = null,
       stage_ids   = null,
       stage_queues = null,
       released    = 0,
       problem     = null,
       updated_at  = clock_timestamp()
 where destination = any(%(destinations)s::text[]) and state <> 'over';

-- name: canary_out
-- These are about to be released as a canary, and this is what their queues said before.
update hold
   set stage_ids = %(ids)s::jsonb, stage_queues = %(queues)s::jsonb, stage_since = clock_timestamp(),
       released = released + jsonb_array_length(%(ids)s::jsonb), updated_at = clock_timestamp()
 where destination = %(destination)s and state = 'releasing';

-- name: canary_watched
-- All of them are out: it is watched from here on.
update hold set stage_since = clock_timestamp() where destination = %(destination)s and state = 'releasing';

-- name: canary_queues
-- What the queues of the canary said since.
update hold set stage_queues = %(queues)s::jsonb where destination = %(destination)s and state = 'releasing';

-- name: canary_look
-- Of a canary, for each queue that its messages failed in: how many there are, how many failed again, have left the held
-- queue, were reported as successes, were cancelled; and whether it was watched for the look time, and for the usual time
-- to fail as well. A success that is only presumed proves nothing here.
select coalesce(canary.queue, live.queue, hold.name), count(*),
       count(*) filter (where live.round > canary.round or live.state = 'in_review'),
       count(*) filter (where live.id is null or live.round > canary.round or live.state in ('cancelled', 'discarded')
                           or (live.returned_round >= canary.round and live.state <> 'unroutable')),
       count(*) filter (where live.round = canary.round and live.state = 'succeeded'
                          and exists (select from transition
                                       where retry_id = live.id and transition.round = canary.round
                                         and transition.state = 'succeeded' and actor = 'reported')),
       count(*) filter (where live.round = canary.round and live.state in ('cancelled', 'discarded')),
       bool_and(hold.stage_since + hold.look < clock_timestamp()),
       bool_and(hold.stage_since + greatest(hold.look, %(usual)s::interval) < clock_timestamp())
  from hold
 cross join lateral jsonb_to_recordset(hold.stage_ids) as canary (id uuid, round int, queue text)
  left join retry as live on live.id = canary.id
 where hold.destination = %(destination)s
 group by 1
 order by 1;

-- name: time_to_fail
-- Within which time 19 of 20 retries of these queues that failed again had done so, counted from their return. Asked of the
-- latest among some hundred retries that are open or in review, so that a long history costs no more than a short one.
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
-- The canary lives.
update hold
   set stage = %(stage)s, stage_ids = null, stage_queues = null, problem = null, updated_at = clock_timestamp()
 where destination = %(destination)s and state = 'releasing';

-- name: canary_waits
-- Why it does not pass yet.
update hold
   set problem = %(problem)s, updated_at = clock_timestamp()
 where destination = %(destination)s and state = 'releasing';

-- name: canary_failed
-- It does not: the rest stays.
update hold
   set state = 'canary_failed', state_since = clock_timestamp(), problem = %(problem)s, updated_at = clock_timestamp()
 where destination = %(destination)s and state = 'releasing';

-- name: let_go
-- So many more have been released.
update hold set released = released + %(more)s, updated_at = clock_timestamp() where destination = %(destination)s;

-- name: hold_unbound
-- What comes due from here on goes home; only the held queue has some left, perhaps.
update hold set bound_at = null, updated_at = clock_timestamp() where destination = %(destination)s;

-- name: hold_over
-- Nothing is left of it; how many it let go. What the tap has not seen yet is expected from now on.
with ended as (
    update hold
       set state = 'over', state_since = clock_timestamp(), updated_at = clock_timestamp()
     where destination = %(destination)s and state = 'releasing'
 returning destination, released
),
expected as (
    update retry
       set expected_at = clock_timestamp()
      from ended
     where retry.state = 'held' and tarry_destination(queue, exchange, properties) = ended.destination
)
select released from ended;

-- name: mark_held
-- What came due while its destination was held, and was not seen to return, waits in the held queue. What came due just
-- before may have slipped through, and has a while to be seen.
with due as (
    select retry.id
      from retry
      join hold on hold.destination = tarry_destination(retry.queue, retry.exchange, retry.properties)
     where retry.state in ('scheduled', 'unroutable') and retry.due_at < statement_timestamp() - %(margin)s::interval
       and hold.state <> 'over' and hold.bound_at is not null
       and (retry.due_at > hold.bound_at
            or greatest(retry.due_at, retry.expected_at, hold.bound_at) < statement_timestamp() - interval '15 seconds')
     order by retry.id
     limit 10000
       for update of retry skip locked
),
moved as (
    update retry
       set state = 'held', updated_at = clock_timestamp()
      from due
     where retry.id = due.id
 returning retry.id, retry.round
)
insert into transition (retry_id, round, state, actor) select id, round, 'held', %(actor)s from moved;

-- name: set_intake
-- Whether the routers take requests.
insert into intake (paused, actor, reason) values (%(paused)s, %(actor)s, %(reason)s)
    on conflict (single) do update
   set paused = excluded.paused, actor = excluded.actor, reason = excluded.reason, at = clock_timestamp();

-- name: intake
-- The same, and who said so.
select paused, actor, reason, at from intake;
