-- name: retries_to_divert
-- The retry with this id, or all retries of one message, with what must be known before one can be diverted: also
-- whether it is paused, and which pause a message that is sent now would run into.
select retry.id::text, retry.message_id, retry.queue, retry.state, retry.round, retry.due_at,
       body is not null and properties is not null as kept,
       pauses.labels[1], pauses.is_paused,
       under_way.kind, under_way.actor, under_way.asked_at, retry.policy
  from retry
 cross join lateral (select array_agg(paused.destination) filter (where paused.kind <> 'automatic-retries'
                                                                    and not (paused.state = 'releasing'
                                                                             and paused.throttle is not null)) as labels,
                            count(*) > 0 as is_paused
                       from tarry_pauses(retry.queue, retry.exchange, retry.policy, retry.properties) as paused) as pauses
  left join diversion as under_way
         on under_way.retry_id = retry.id and under_way.round = retry.round and under_way.unbound_at is null
 where retry.id = %(id)s::uuid or retry.message_id = %(called)s
 order by retry.first_failed_at;

-- name: active_diversions
-- How many bindings there are on the gates.
select count(*) from diversion where unbound_at is null;

-- name: ask_diversion
-- Record the request before anything is done. Returns no row if the same diversion is already under way, or if the
-- round or state of the retry has changed.
insert into diversion (id, retry_id, round, kind, actor, reason, due_at, on_release)
select %(id)s, retry.id, retry.round, %(kind)s, %(actor)s, %(reason)s,
       coalesce(retry.due_at, clock_timestamp()), %(on_release)s
  from retry
 where retry.id = %(retry_id)s and retry.round = %(round)s and retry.state in ('scheduled', 'held')
    on conflict (retry_id, round) where unbound_at is null do nothing
returning due_at, (select tier from retry where retry.id = diversion.retry_id and retry.round = diversion.round);

-- name: diversion_bound
-- The broker has confirmed the binding. Returns whether that was in time, so that the message cannot have passed the
-- gate. A waiting message does not pass before it is due. A message in a held queue does not pass until it is released;
-- it is known to be there if it came due while a pause of it was in force, which still is. The later of two clocks
-- counts, the caller's and this one.
with bound as (
    update diversion
       set bound_at = coalesce(bound_at, greatest(clock_timestamp(), %(here)s))
     where id = %(id)s
 returning *
)
select bound.bound_at + %(margin)s::interval < bound.due_at
       or (live.state = 'held' and bound.on_release
           and exists (select from tarry_pauses(live.queue, live.exchange, live.policy, live.properties) as paused
                        where paused.state = 'holding' and paused.state_since < bound.asked_at
                          and paused.bound_at + %(margin)s::interval < bound.due_at))
  from bound
  left join retry as live on live.id = bound.retry_id and live.round = bound.round;

-- name: diversion_outcomes
-- What the taps have reported for these diversions: `diverted`, `returned`, or null if nothing yet. If the send-now
-- message of a retry-now has begun, `diverted` was reported before. One that was skipped when it was due counts as
-- returned: it had passed the gate.
select diversion.id::text,
       case when diversion.begun_at is not null then 'diverted'
            when live.id is null or live.returned_round >= diversion.round or live.round > diversion.round
              or live.state = 'skipped' then 'returned'
            when diversion.diverted_at is not null then 'diverted'
       end
  from diversion
  left join retry as live on live.id = diversion.retry_id
 where diversion.id = any(%(ids)s::uuid[]);

-- name: cancel
-- Mark the retry as cancelled, with the actor and the reason of the request: the binding will divert the message, or
-- already has. No effect on the retry if the tap has already recorded it.
with asked as (
    update diversion
       set verdict = 'cancelled', decided_at = clock_timestamp()
     where id = %(id)s
 returning *
),
moved as (
    update retry as live
       set state = 'cancelled', updated_at = clock_timestamp()
      from asked
     where live.id = asked.retry_id and live.round = asked.round and live.state in ('scheduled', 'held')
 returning live.id, live.round
)
insert into transition (retry_id, round, state, actor, reason)
select moved.id, moved.round, 'cancelled', asked.actor, asked.reason from moved, asked;

-- name: decide
-- Record the outcome of the diversion.
update diversion set verdict = %(verdict)s, decided_at = clock_timestamp() where id = %(id)s;

-- name: unbound
-- The binding has been removed.
update diversion set unbound_at = clock_timestamp() where id = %(id)s;

-- name: stored
-- The stored message, from which a send-now message would be made.
select id::text, round, routing_key, queue, coalesce((extract(epoch from due_at) * 1000)::bigint, 0), body, properties
  from retry
 where id = %(id)s and round = %(round)s and body is not null and properties is not null;

-- name: to_copy
-- What is needed to send this retry now, if its waiting round is still the current one; or the send-now message itself,
-- if its round has begun and was not seen to return.
select retry.id::text, retry.round, retry.routing_key, retry.queue, (extract(epoch from retry.due_at) * 1000)::bigint,
       retry.body, retry.properties
  from retry
  join diversion on diversion.retry_id = retry.id
 where diversion.id = %(id)s
   and retry.body is not null and retry.properties is not null
   and ((retry.round = diversion.round and retry.state in ('scheduled', 'held'))
        or (retry.round = diversion.round + 1 and retry.state in ('scheduled', 'held')
            and retry.returned_round <= diversion.round));

-- name: begin_copy
-- Ends the waiting round as cancelled and begins the next one at once, without a delay and without using an attempt.
with asked as (select * from diversion where id = %(id)s),
moved as (
    update retry as live
       set state       = 'scheduled',
           round       = live.round + 1,
           manual_round = live.round + 1,
           tier        = %(tier)s,
           delay_ms    = 0,
           entered_at  = to_timestamp(%(now_ms)s / 1000.0),
           due_at      = to_timestamp(%(now_ms)s / 1000.0),
           expected_at = to_timestamp(%(now_ms)s / 1000.0),
           properties  = %(properties)s,
           updated_at  = clock_timestamp()
      from asked
     where live.id = asked.retry_id and live.round = asked.round and live.state in ('scheduled', 'held')
 returning live.id, live.round, live.retry_count, live.policy, live.error_class, live.fingerprint, live.owner
),
begun as (
    update diversion set begun_at = clock_timestamp() where id = %(id)s and exists (select from moved)
)
insert into transition (retry_id, round, state, actor, reason, detail)
select moved.id, moved.round - 1, 'cancelled', asked.actor, 'retried now instead', null::jsonb from moved, asked
 union all
select moved.id, moved.round, 'scheduled', asked.actor, coalesce('retry now: ' || asked.reason, 'retry now'),
       jsonb_build_object('due_ms', %(now_ms)s::bigint, 'delay_ms', 0, 'tier', %(tier)s::text,
                          'attempt', moved.retry_count)
       || tarry_about(moved.policy, moved.error_class, moved.fingerprint, null, moved.owner)
  from moved, asked;

-- name: copied
-- The broker has confirmed the send-now message.
update diversion
   set copied_at = clock_timestamp(), verdict = 'retried', decided_at = clock_timestamp()
 where id = %(id)s;

-- name: unfinished_diversions
-- Abandoned diversions: without an outcome, and requested so long ago that no caller can still be waiting.
select id::text, retry_id::text, round, kind, on_release, due_at,
       (select tier from retry where retry.id = diversion.retry_id and retry.round = diversion.round)
  from diversion
 where verdict is null and unbound_at is null and asked_at < clock_timestamp() - %(left_for)s::interval
 order by asked_at
 limit 500;

-- name: diversions_to_end
-- Diversions whose binding is no longer needed: the message was diverted, and a second copy caused by a crash would
-- have followed by now. For one that returned or was dropped there is nothing to wait for. After a day no message
-- follows any more, unless a pause holds it, or it waits for a router between two legs of a long delay.
select id::text, retry_id::text, round, kind, on_release, due_at,
       (select tier from retry where retry.id = diversion.retry_id and retry.round = diversion.round)
  from diversion
 where unbound_at is null
   and (verdict in ('returned', 'dropped')
        or (verdict is not null and diverted_at is not null
            and greatest(due_at, diverted_at, decided_at) < clock_timestamp() - %(linger)s::interval)
        or (verdict is not null and due_at < clock_timestamp() - interval '1 day'
            and not exists (select from paused_destination as paused where paused.state <> 'over')
            and not exists (select from retry
                             where retry.id = diversion.retry_id and retry.layover_round = diversion.round
                               and retry.layover_due = diversion.due_at and retry.layover_until is not null
                               and diversion.diverted_at is null)))
 order by due_at
 limit 500;
