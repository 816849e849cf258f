-- name: configure_report
-- Settings for each connection of a report: the balance groups the whole history, which should not spill to disk.
select set_config('work_mem', '128MB', false);

-- name: balance
-- The totals of the audit, in one row. Each round that was ever claimed has exactly one outcome (`fate`).
with rounds as (
    select retry_id, round,
           bool_or(state = 'scheduled')                    as scheduled,
           max(id) filter (where state = 'returned')       as returned,
           max(id) filter (where state = 'in_review')      as in_review,
           bool_or(state = 'cancelled')                    as cancelled,
           max(id) filter (where state = 'discarded')      as discarded,
           bool_or(state = 'skipped')                      as skipped,
           count(*) filter (where state = 'recovered') > 0 as recovered
      from transition
     where (%(since)s::timestamptz is null or at >= %(since)s)
     group by retry_id, round
    having bool_or(state in ('claimed', 'scheduled', 'in_review', 'skipped'))
),
fates as materialized (
    -- Materialized separately, so that only a few narrow columns are sorted: the message itself is in the row.
    select rounds.retry_id, rounds.scheduled, rounds.recovered, live.due_at, live.expected_at,
           live.state = 'held' and tarry_is_paused(live.queue, live.exchange, live.policy, live.properties) as is_paused,
           -- A round can be redriven from review, and go there again: if it is still the latest one, its row decides.
           case when live.round = rounds.round
                 and live.state in ('in_review', 'scheduled', 'discarded', 'skipped')     then live.state
                when rounds.in_review > greatest(0, rounds.returned, rounds.discarded) then 'in_review'
                when rounds.discarded > greatest(0, rounds.returned)      then 'discarded'
                when rounds.returned is not null                          then 'returned'
                when rounds.cancelled                                     then 'cancelled'
                when rounds.skipped                                       then 'skipped'
                when live.id is null or live.round > rounds.round         then 'unseen'
                when live.state in ('returned', 'succeeded')              then 'returned'
                else live.state
           end as fate
      from rounds
      left join retry as live on live.id = rounds.retry_id
     where (%(queue)s::text is null or live.queue = %(queue)s)
           -- A claim that was given back began no round; its request is counted as a duplicate.
       and not (live.round < rounds.round and not rounds.scheduled and not rounds.skipped
                and coalesce(rounds.returned, rounds.in_review) is null)
),
notes as (
    select count(*) filter (where detail is null)     as duplicates,
           count(*) filter (where detail is not null) as twice
      from transition
     where state = 'duplicate'
       and (%(since)s::timestamptz is null or at >= %(since)s)
       and (%(queue)s::text is null or retry_id in (select id from retry where queue = %(queue)s))
)
select count(distinct retry_id)                                  as retries,
       count(*) filter (where scheduled)                         as scheduled,
       count(*) filter (where fate = 'returned')                 as returned,
       count(*) filter (where fate = 'in_review')                as in_review,
       count(*) filter (where fate = 'scheduled')                as waiting,
       count(*) filter (where fate = 'claimed')                  as claimed,
       count(*) filter (where fate = 'unroutable')               as unroutable,
       (select duplicates from notes)                            as duplicates,
       count(*) filter (where fate in ('scheduled', 'held', 'unroutable') and not is_paused
                          and due_at < statement_timestamp() - %(grace)s::interval
                          and expected_at < statement_timestamp() - %(grace)s::interval) as overdue,
       count(*) filter (where fate = 'cancelled')                as cancelled,
       count(*) filter (where fate = 'held')                     as held,
       count(*) filter (where fate = 'discarded')                as discarded,
       count(*) filter (where fate = 'unseen')                   as unseen,
       count(*) filter (where recovered)                         as recovered,
       (select twice from notes)                                 as twice,
       count(*)                                                  as rounds,
       count(*) filter (where fate = 'skipped')                  as skipped
  from fates;

-- name: drift
-- How late returns were, in milliseconds; a negative minimum would mean an early return.
select count(*)::int, coalesce(min(d), 0)::int, coalesce(percentile_disc(0.5) within group (order by d), 0)::int,
       coalesce(percentile_disc(0.99) within group (order by d), 0)::int, coalesce(max(d), 0)::int
  from (select (detail ->> 'drift_ms')::int as d from transition where state = 'returned') as returns;

-- name: waiting
-- Waiting retries with their queue and due time, the next due first.
select queue, tier, due_at, retry_count, max_retries, coalesce(message_id, id::text)
  from retry
 where state = 'scheduled'
 order by due_at
 limit %(limit)s;

-- name: reviewed
-- The messages that went to review most recently.
select retry.queue, coalesce(message_id, retry.id::text), transition.reason, transition.at
  from transition
  join retry on retry.id = retry_id
 where transition.state = 'in_review'
 order by transition.id desc
 limit %(limit)s;

-- name: retries_called
-- All retries of one message id, or the retry with this id; null for either that is not asked for.
select id::text, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type, error_reason,
       fingerprint, first_failed_at, due_at, returned_at, drift_ms, tier, octet_length(body), owner, job_type, priority
  from retry
 where message_id = %(called)s or id = %(id)s::uuid
 order by first_failed_at;

-- name: retries_beginning
-- Retries whose ids begin with a prefix, unless a message has exactly this id.
select id::text, queue || ', ' || state
  from retry
 where id between %(low)s::uuid and %(high)s::uuid
   and not exists (select from retry where message_id = %(called)s)
 order by id
 limit %(limit)s;

-- name: fingerprints_beginning
-- Fingerprints that begin with a prefix, with the type of one such error. Steps through the index from one fingerprint
-- to the next, however many retries each of them has.
with recursive found as (
    (select fingerprint from retry where fingerprint between %(low)s and %(high)s order by fingerprint limit 1)
    union all
    select (select retry.fingerprint from retry
             where retry.fingerprint > found.fingerprint and retry.fingerprint <= %(high)s
             order by retry.fingerprint limit 1)
      from found
     where found.fingerprint is not null
)
select fingerprint, coalesce((select error_type from retry where retry.fingerprint = found.fingerprint limit 1), '')
  from found
 where fingerprint is not null
 limit %(limit)s;

-- name: transitions_of
-- The timeline of one retry; with a limit, its latest steps.
select round, state, at, actor, reason, detail
  from (select * from transition where retry_id = %(id)s::uuid order by id desc limit %(limit)s) as latest
 order by id;

-- name: counts
-- The numbers of `tarry status` that come from the store, in one row. Each part can be counted in an index.
with waiting as (
    select count(*) as in_all,
           count(*) filter (where due_at <= statement_timestamp() + interval '1 minute') as in_a_minute,
           count(*) filter (where due_at <= statement_timestamp() + interval '1 hour')   as in_an_hour
      from retry
     where state = 'scheduled'
),
others as (
    select count(*) filter (where state = 'in_review')  as in_review,
           count(*) filter (where state = 'held')       as held,
           count(*) filter (where state = 'unroutable') as unroutable,
           count(*) filter (where state = 'claimed')    as claimed
      from retry
     where state in ('in_review', 'held', 'unroutable', 'claimed')
),
late as (
    select (select count(*)
              from retry
             where state in ('scheduled', 'held', 'unroutable')
               and due_at < statement_timestamp() - %(grace)s::interval
               and expected_at < statement_timestamp() - %(grace)s::interval
               and not (state = 'held' and tarry_is_paused(queue, exchange, policy, properties)))
           -- At the end of a leg, and not yet due.
           + (select count(*)
                from retry
               where layover_until < statement_timestamp() - %(grace)s::interval
                 and layover_round = round and layover_due = due_at and state in ('scheduled', 'held', 'unroutable')
                 and (due_at >= statement_timestamp() - %(grace)s::interval
                      or expected_at >= statement_timestamp() - %(grace)s::interval)) as overdue
),
due as (
    select count(*) as now
      from retry
     where state in ('scheduled', 'held', 'unroutable') and due_at <= statement_timestamp()
),
skipped as (
    select count(*) as in_a_day
      from retry
     where state = 'skipped' and updated_at > statement_timestamp() - interval '1 day'
)
select in_all, in_a_minute, in_an_hour, in_review, held, unroutable, claimed, overdue, due.now, skipped.in_a_day
  from waiting, others, late, due, skipped;

-- name: paused
-- What is paused or being released, each with its number of held retries; and the recovery of stuck messages and the
-- intake, if they are paused.
select case kind when 'policy' then 'policy ' || name when 'job-type' then 'job type ' || name
                 when 'automatic-retries' then 'automatic retries' else destination end,
       case when state = 'releasing' and throttle is not null then 'throttled' else state end, since,
       case when kind = 'queue'
            then (select count(*) from retry
                   where retry.state = 'held' and retry.queue = paused.destination
                     and tarry_holds(paused.kind, paused.destination, paused.name, queue, exchange, policy, properties))
            else (select count(*) from retry
                   where retry.state = 'held'
                     and tarry_holds(paused.kind, paused.destination, paused.name, queue, exchange, policy, properties)) end,
       coalesce(problem,
                (select 'its breaker is ' || replace(breaker.state, '_', '-') || ': ' || reason
                   from breaker where breaker.destination = paused.destination and breaker.state <> 'closed'),
                'at most ' || throttle || ' a second')
  from paused_destination as paused
 where state <> 'over'
 union all
(select 'the recovery of stuck messages', 'paused', at, null, reason
   from pause
  where scope = 'stuck-recovery' and ended_at is null and coalesce(until > clock_timestamp(), true)
  order by at
  limit 1)
 union all
select 'the intake', 'paused', at, null, reason from intake where paused and coalesce(until > clock_timestamp(), true)
 order by 1;

-- name: open_by_tier
-- The waiting retries of each tier: their number, the earliest entry and the next due time. One index covers all of it.
select tier, count(*), min(entered_at), min(due_at)
  from retry
 where state = 'scheduled'
 group by tier;

-- name: not_overdue_by_tier
-- How many retries can legitimately be in each tier: those that were sent there and are not overdue, without those that
-- are overdue at the end of a leg. Each part is counted in an index.
select tier,
       count(*) - (select count(*)
                     from retry as leg
                    where leg.layover_until < statement_timestamp() - %(grace)s::interval
                      and leg.layover_round = leg.round and leg.layover_due = leg.due_at
                      and leg.state = 'scheduled' and leg.tier = retry.tier
                      and leg.expected_at >= statement_timestamp() - %(grace)s::interval)
  from retry
 where state = 'scheduled' and tier = any(%(tiers)s) and expected_at >= statement_timestamp() - %(grace)s::interval
 group by tier;

-- name: clock
-- Postgres's clock is the only one that the store uses.
select clock_timestamp();

-- name: in_first_wait
-- How many messages must be in each of these tiers now: those that entered longer ago than the settling time, and do
-- not leave within it.
select tier, count(*)
  from retry
  join unnest(%(tiers)s::text[], %(ttls)s::bigint[]) as t (tier, ttl_ms) using (tier)
 where state = 'scheduled'
   and entered_at < statement_timestamp() - %(settle)s::interval
   and entered_at > statement_timestamp() + %(settle)s::interval - ttl_ms * interval '1 millisecond'
 group by tier;

-- name: rows_in_first_wait
-- The same, as single rows; with `whole_way` also those that have moved on from there, for a broker that holds no
-- messages at all.
select id::text, round, message_id, queue, exchange, state, tier, due_at, properties is not null and body is not null
  from retry
  join unnest(%(tiers)s::text[], %(ttls)s::bigint[]) as t (tier, ttl_ms) using (tier)
 where state = 'scheduled'
   and entered_at < statement_timestamp() - %(settle)s::interval
   and entered_at + (case when %(whole_way)s then greatest(delay_ms, ttl_ms) else ttl_ms end) * interval '1 millisecond'
       > statement_timestamp() + %(settle)s::interval
       -- At the end of a leg it is in no tier, but with the router.
   and not coalesce(layover_until < statement_timestamp() + %(settle)s::interval
                    and layover_round = round and layover_due = due_at, false)
 order by due_at;

-- name: overdue_rows
-- Retries that should have returned by now and were not seen to. The expected time of a recovered one counts from its
-- recovery. One whose delay takes several legs is expected at the end of its leg, by the router, and is overdue if the
-- next leg was not sent. The last columns say which of these gates can hold it: those whose labels its properties
-- contain, and null if the properties were not stored; and its policy.
select id::text, round, message_id, queue, exchange, state, tier, due_at, properties is not null and body is not null,
       case when on_leg then layover_until else expected_at end, on_leg,
       case when properties is not null
            then array(select label
                         from unnest(%(gates)s::text[]) as gate (label)
                        where tarry_holds('policy', label, null, queue, exchange, policy, properties)) end,
       policy
  from retry
 cross join lateral (select coalesce(layover_until is not null and layover_round = round and layover_due = due_at, false))
       as layover (on_leg)
 where state in ('scheduled', 'held', 'unroutable')
   and ((due_at < statement_timestamp() - %(grace)s::interval
         and expected_at < statement_timestamp() - %(grace)s::interval)
        or (layover_until < statement_timestamp() - %(grace)s::interval and on_leg))
   and not (state = 'held' and tarry_is_paused(queue, exchange, policy, properties))
 order by due_at;

-- name: in_held_queues
-- How many messages must be in each held queue. During a release, and just after one, messages are in flight and not
-- judged; nor are those that several pauses apply to, which can be in the held queue of any of them. Of a throttled
-- destination, as many can be in flight as it releases in four seconds, of which two are with the service already, and
-- those that the tap has yet to read.
with held as (
    select min(paused.kind) as kind, min(paused.name) as name,
           case min(paused.state) when 'releasing'
                then 4 * min(paused.throttle)::bigint + %(unread)s
                else 0 end as in_flight
      from retry
     cross join lateral tarry_pauses(retry.queue, retry.exchange, retry.policy, retry.properties) as paused
     where retry.state = 'held' and retry.updated_at < statement_timestamp() - %(settle)s::interval
       and not exists (select from paused_destination as other
                        where other.state = 'over'
                          and other.state_since > statement_timestamp() - %(settle)s::interval)
     group by retry.id
    having count(*) = 1
       and (min(paused.state) in ('holding', 'canary_failed')
            or (min(paused.state) = 'releasing' and min(paused.throttle) is not null))
)
select kind, name, count(*) - in_flight from held group by kind, name, in_flight having count(*) > in_flight;

-- name: rows_in_held_queues
-- The same, as single rows, for these destinations.
select retry.id::text, round, message_id, queue, exchange, retry.state, tier, due_at,
       properties is not null and body is not null
  from retry
  join paused_destination as paused
    on paused.destination = any(%(destinations)s)
   and tarry_holds(paused.kind, paused.destination, paused.name, queue, exchange, policy, properties)
 where retry.state = 'held' and paused.state in ('holding', 'canary_failed')
   and retry.updated_at < statement_timestamp() - %(settle)s::interval
   and (select count(*) from tarry_pauses(queue, exchange, policy, properties)) = 1
   and not exists (select from paused_destination as other
                    where other.state = 'over'
                      and other.state_since > statement_timestamp() - %(settle)s::interval)
 order by due_at;

-- name: stale_claims
-- Claims whose request should have been delivered again by now.
select id::text, round, message_id, queue, exchange, state, tier, claimed_at, false
  from retry
 where state = 'claimed' and claimed_at < statement_timestamp() - %(lease)s::interval
 order by claimed_at;

-- name: passed
-- For each tier, the latest expected time among the retries that it has released, as far as the tap has seen in the
-- last hour; with `ago`, as of that long ago. Not of one whose last leg was not recorded: it passed another tier.
select tier, max(expected_at)
  from retry
 where state = 'returned' and returned_at > statement_timestamp() - interval '1 hour' and tier = any(%(tiers)s)
   and returned_at <= statement_timestamp() - %(ago)s::interval
   and not coalesce(layover_until is not null and layover_round = round and layover_due = due_at, false)
 group by tier;

-- name: tap_seen
-- The time of the latest return that the tap has seen.
select max(returned_at) from retry where state = 'returned';

-- name: to_rebuild
-- What is needed to publish these retries again. One whose round, state or leg has changed in the meantime is left out.
select id::text, round, routing_key, queue, (extract(epoch from due_at) * 1000)::bigint, body, properties,
       case when layover_round = round and layover_due = due_at then layover_leg else 0 end
  from retry
  join unnest(%(ids)s::uuid[], %(rounds)s::int[], %(expected)s::timestamptz[]) as wanted (id, round, expected)
 using (id, round)
 where state in ('scheduled', 'held', 'unroutable') and body is not null and properties is not null
   and (wanted.expected is null
        or wanted.expected = case when layover_until is not null and layover_round = round and layover_due = due_at
                                  then layover_until else expected_at end)
 order by due_at;

-- name: recovered
-- These were published again and confirmed by the broker: store the tier that they wait in now, and add a note to the
-- history.
with sent as (
    select *
      from unnest(%(ids)s::uuid[], %(rounds)s::int[], %(tiers)s::text[], %(delay_ms)s::bigint[])
           as s (id, round, tier, delay_ms)
),
moved as (
    update retry as live
       set state       = case live.state when 'held' then 'held' else 'scheduled' end,
           tier        = sent.tier,
           delay_ms    = sent.delay_ms,
           entered_at  = clock_timestamp(),
           expected_at = clock_timestamp() + sent.delay_ms * interval '1 millisecond',
           updated_at  = clock_timestamp()
      from sent
     where live.id = sent.id and live.round = sent.round and live.state in ('scheduled', 'held', 'unroutable')
)
insert into transition (retry_id, round, state, actor, reason, detail)
select id, round, 'recovered', %(actor)s, 'published again from the audit',
       jsonb_build_object('tier', tier, 'delay_ms', delay_ms)
  from sent;

-- name: written_off
-- An operator states that these are no longer needed. Retries whose round or state has changed in the meantime are left
-- unchanged.
with given as (
    select * from unnest(%(ids)s::uuid[], %(rounds)s::int[]) as g (id, round)
),
closed as (
    update retry as live
       set state = 'discarded', updated_at = clock_timestamp()
      from given
     where live.id = given.id and live.round = given.round
       and live.state in ('claimed', 'scheduled', 'held', 'unroutable')
 returning live.id, live.round
)
insert into transition (retry_id, round, state, actor, reason)
select id, round, 'discarded', %(actor)s, %(reason)s
  from closed
returning retry_id::text;

-- name: note_recovered
-- The same note for messages that were published to the review queue again and wait in no tier.
insert into transition (retry_id, round, state, actor, reason)
select id, round, 'recovered', %(actor)s, 'published to review again from the audit'
  from unnest(%(ids)s::uuid[], %(rounds)s::int[]) as s (id, round);

-- name: reviews_to_rebuild
-- What the store has in review, with its payload, in slices.
select id::text, round, routing_key, body, properties
  from retry
 where state = 'in_review' and body is not null and properties is not null and id > %(after)s
 order by id
 limit %(limit)s;

-- name: outcomes_by_attempt
-- The rounds that returned in this time, by attempt: how many there were, how many of them succeeded according to their
-- consumers, were presumed successful, or failed again. A round that was presumed successful and then reported or failed
-- counts as reported or failed. The rest have no outcome yet.
with returned as (
    select distinct retry_id, round
      from transition
     where state = 'returned' and at > statement_timestamp() - %(within)s::interval
),
outcomes as (
    select returned.retry_id, returned.round,
           max((transition.detail ->> 'attempt')::int) filter (where transition.round = returned.round
                                                                 and transition.state = 'scheduled') as attempt,
           bool_or(transition.round = returned.round and transition.state = 'succeeded'
                   and transition.actor = 'reported') as reported,
           bool_or(transition.round = returned.round and transition.state = 'succeeded'
                   and transition.actor <> 'reported') as presumed,
           -- A claim that was given back was followed by no record.
           bool_or(transition.round > returned.round and transition.state in ('scheduled', 'in_review', 'skipped')) as failed
      from returned
      join transition on transition.retry_id = returned.retry_id and transition.round in (returned.round, returned.round + 1)
     where %(queue)s::text is null
        or exists (select from retry where retry.id = returned.retry_id and retry.queue = %(queue)s)
     group by returned.retry_id, returned.round
)
select coalesce(attempt, 0), count(*), count(*) filter (where reported and not failed),
       count(*) filter (where presumed and not reported and not failed), count(*) filter (where failed)
  from outcomes
 group by 1
 order by 1;
