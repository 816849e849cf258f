-- name: started
-- Attempts that consumers report as started. Nothing is written for a round that is over, or for a retry that the store
-- does not have. A success that was only presumed is taken back: the message was still waiting in its queue. The same
-- report again changes nothing; another start of the same round is a redelivery, and counts from then on.
with reported as (
    select distinct on (id, round) *, to_timestamp(at_ms / 1000.0) as at
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(at_ms)b::bigint[], %(consumers)b::text[])
           as t (id, round, at_ms, consumer)
     order by id, round, at_ms desc
),
known as (
    select reported.*, live.state, live.round as live_round
      from reported
      join retry as live using (id)
     where live.round < reported.round
        or (live.round = reported.round
            and (live.state in ('claimed', 'scheduled', 'held', 'unroutable', 'returned')
                 or (live.state = 'succeeded' and live.presumed)))
     order by live.id
       for update of live
),
moved as (
    update retry as live
       set state = 'returned', presumed = false, updated_at = clock_timestamp()
      from known
     where live.id = known.id and live.round = known.round and live.state = 'succeeded' and live.presumed
 returning live.id, live.round
),
noted as (
    insert into transition (retry_id, round, state, actor, reason)
    select id, round, 'started', 'reported', 'it started after its success had been presumed' from moved
)
insert into attempt_start as before (retry_id, round, started_at, consumer)
select id, round, at, consumer from known
    on conflict (retry_id, round) do update
   set started_at = excluded.started_at, consumer = excluded.consumer, seen_at = clock_timestamp()
 where before.started_at is distinct from excluded.started_at;

-- name: stuck_attempts
-- Attempts that have been running for longer than their limit, the oldest first, with that limit. A policy may have a
-- limit of its own; without any limit an attempt is never stuck.
select live.id::text, live.message_id, live.queue, live.round, live.retry_count, live.max_retries, live.policy,
       start.started_at, start.seen_at, start.consumer, live.body is not null and live.properties is not null,
       coalesce(own.after, %(after)s::interval)
  from attempt_start as start
  join retry as live on live.id = start.retry_id and live.round = start.round and live.state = 'returned'
  left join unnest(%(policies)s::text[], %(afters)s::interval[]) as own (policy, after) on own.policy = live.policy
 where start.seen_at < statement_timestamp() - coalesce(own.after, %(after)s::interval)
 order by start.seen_at, live.id
 limit %(limit)s;

-- name: count_stuck
-- How many there are.
select count(*)
  from attempt_start as start
  join retry as live on live.id = start.retry_id and live.round = start.round and live.state = 'returned'
  left join unnest(%(policies)s::text[], %(afters)s::interval[]) as own (policy, after) on own.policy = live.policy
 where start.seen_at < statement_timestamp() - coalesce(own.after, %(after)s::interval);

-- name: stuck_stored
-- The stored message of an attempt, if it is still the same attempt.
select live.id::text, live.round, live.routing_key, live.queue, coalesce((extract(epoch from live.due_at) * 1000)::bigint, 0),
       live.body, live.properties, live.exchange, live.message_id, (extract(epoch from live.first_failed_at) * 1000)::bigint
  from retry as live
  join attempt_start as start on start.retry_id = live.id and start.round = live.round
 where live.id = %(id)s and live.round = %(round)s and live.state = 'returned' and start.seen_at = %(seen_at)s
   and live.body is not null and live.properties is not null;

-- name: recover_stuck
-- Ends the attempt and begins the next round at once, which uses an attempt as a failure does. Before the message is
-- published: the tap may see it the moment that it is. No row if the attempt has ended, was started again, or is being
-- recovered by another process: each attempt is recovered once.
with stuck as (
    select live.id, live.round, start.started_at, start.consumer
      from retry as live
      join attempt_start as start on start.retry_id = live.id and start.round = live.round
     where live.id = %(id)s and live.round = %(round)s and live.state = 'returned' and start.seen_at = %(seen_at)s
       for update of live, start
),
asked as (
    insert into stuck_recovery (retry_id, round, sent_to, actor)
    select id, round, 'queue', %(actor)s from stuck
        on conflict do nothing
 returning retry_id as id, round
),
forgotten as (
    delete from attempt_start as start using asked where start.retry_id = asked.id and start.round = asked.round
),
moved as (
    update retry as live
       set state       = 'scheduled',
           round       = live.round + 1,
           retry_count = live.retry_count + 1,
           tier        = %(tier)s,
           delay_ms    = 0,
           entered_at  = to_timestamp(%(now_ms)s / 1000.0),
           due_at      = to_timestamp(%(now_ms)s / 1000.0),
           expected_at = to_timestamp(%(now_ms)s / 1000.0),
           returned_at = null,
           manual_round = case when %(by_person)s then live.round + 1 else live.manual_round end,
           properties  = %(properties)s,
           updated_at  = clock_timestamp()
      from asked
     where live.id = asked.id and live.round = asked.round
 returning live.id, live.round, live.retry_count, live.policy, live.error_class, live.fingerprint, live.owner
)
insert into transition (retry_id, round, state, actor, reason, detail)
select stuck.id, stuck.round, 'stuck', %(actor)s, %(reason)s::text,
       jsonb_build_object('started_ms', (extract(epoch from stuck.started_at) * 1000)::bigint, 'consumer', stuck.consumer)
  from stuck, moved
 union all
select id, round, 'scheduled', %(actor)s, 'recovered from a stuck attempt: possibly a second delivery',
       jsonb_build_object('due_ms', %(now_ms)s::bigint, 'delay_ms', 0, 'tier', %(tier)s::text, 'attempt', retry_count)
       || tarry_about(policy, error_class, fingerprint, null, owner)
  from moved;

-- name: review_stuck
-- The same, but to review, as the next round: what the hung consumer may still do belongs to the round before.
with stuck as (
    select live.id, live.round, start.started_at, start.consumer
      from retry as live
      join attempt_start as start on start.retry_id = live.id and start.round = live.round
     where live.id = %(id)s and live.round = %(round)s and live.state = 'returned' and start.seen_at = %(seen_at)s
       for update of live, start
),
asked as (
    insert into stuck_recovery (retry_id, round, sent_to, actor)
    select id, round, 'review', %(actor)s from stuck
        on conflict do nothing
 returning retry_id as id, round
),
forgotten as (
    delete from attempt_start as start using asked where start.retry_id = asked.id and start.round = asked.round
),
moved as (
    update retry as live
       set state         = 'in_review',
           round         = live.round + 1,
           review_reason = %(reason)s,
           properties    = %(properties)s,
           updated_at    = clock_timestamp()
      from asked
     where live.id = asked.id and live.round = asked.round
 returning live.id, live.round, live.policy, live.error_class, live.fingerprint, live.owner
)
insert into transition (retry_id, round, state, actor, reason, detail)
select stuck.id, stuck.round, 'stuck', %(actor)s, %(reason)s::text,
       jsonb_build_object('started_ms', (extract(epoch from stuck.started_at) * 1000)::bigint, 'consumer', stuck.consumer)
  from stuck, moved
 union all
select id, round, 'in_review', %(actor)s, %(reason)s::text, tarry_about(policy, error_class, fingerprint, null, owner) from moved;

-- name: stuck_published
-- The broker has confirmed the recovered message, or it was seen since.
update stuck_recovery set published_at = clock_timestamp() where retry_id = %(id)s and round = %(round)s;

-- name: unpublished_recoveries
-- Recoveries whose message is not confirmed, and begun so long ago that no caller can still be at work on it. The
-- message is null if it needs no publishing any more: it was seen, or has moved on.
select recovery.retry_id::text, recovery.round, recovery.sent_to, live.routing_key, live.body, live.properties
  from stuck_recovery as recovery
  left join retry as live
    on live.id = recovery.retry_id
   and live.round = recovery.round + 1
   and ((recovery.sent_to = 'queue' and live.state in ('scheduled', 'held') and live.returned_round <= recovery.round)
        or (recovery.sent_to = 'review' and live.state = 'in_review'))
 where recovery.published_at is null and recovery.begun_at < clock_timestamp() - %(left_for)s::interval
 order by recovery.begun_at
 limit 500;

-- name: count_recovered
-- Recoveries that no metric has counted yet.
update stuck_recovery set counted = true where not counted and published_at is not null returning sent_to;

-- name: forget_starts
-- Starts whose round is over, or that no round ever followed. In slices.
delete from attempt_start
 where (retry_id, round) in (select start.retry_id, start.round
                               from attempt_start as start
                               left join retry as live on live.id = start.retry_id
                              where live.id is null or live.round > start.round
                                 or (live.round = start.round
                                     and live.state in ('succeeded', 'in_review', 'cancelled', 'discarded', 'skipped'))
                                 or (live.round < start.round and start.seen_at < statement_timestamp() - interval '1 day')
                              limit %(limit)s);

-- name: prune_stuck_recoveries
-- Old recoveries, in slices.
delete from stuck_recovery
 where (retry_id, round) in (select retry_id, round
                               from stuck_recovery
                              where begun_at < statement_timestamp() - %(older_than)s::interval
                                and published_at is not null and counted
                              limit %(limit)s);
