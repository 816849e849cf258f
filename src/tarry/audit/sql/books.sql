-- name: configure_report
-- For each connection of a reader: the balance groups the whole history, which should not go through the disk.
select set_config('work_mem', '128MB', false);

-- name: balance
-- How the books stand: one line. Each round that was ever claimed has exactly one fate.
with rounds as (
    select retry_id, round,
           bool_or(state = 'scheduled')                    as scheduled,
           max(id) filter (where state = 'returned')       as returned,
           max(id) filter (where state = 'in_review')      as in_review,
           bool_or(state = 'cancelled')                    as cancelled,
           max(id) filter (where state = 'discarded')      as discarded,
           count(*) filter (where state = 'recovered') > 0 as recovered
      from transition
     where (%(since)s::timestamptz is null or at >= %(since)s)
     group by retry_id, round
    having bool_or(state in ('claimed', 'scheduled', 'in_review'))
),
fates as materialized (
    -- Apart, so that only a few narrow columns are sorted: the message itself is in the row.
    select rounds.retry_id, rounds.scheduled, rounds.recovered, live.due_at, live.expected_at,
           live.state = 'held' and tarry_on_hold(live.queue, live.exchange, live.properties) as on_hold,
           -- A round can be sent on from review, and go there again: where it still is the latest one, its row knows.
           case when live.round = rounds.round and live.state in ('in_review', 'scheduled', 'discarded') then live.state
                when rounds.in_review > greatest(0, rounds.returned, rounds.discarded) then 'in_review'
                when rounds.discarded > greatest(0, rounds.returned)      then 'discarded'
                when rounds.returned is not null                          then 'returned'
                when rounds.cancelled                                     then 'cancelled'
                when live.id is null or live.round > rounds.round         then 'unseen'
                when live.state in ('returned', 'succeeded')              then 'returned'
                else live.state
           end as fate
      from rounds
      left join retry as live on live.id = rounds.retry_id
     where (%(queue)s::text is null or live.queue = %(queue)s)
           -- A claim that was given back began no round; its request is counted as a duplicate.
       and not (live.round < rounds.round and not rounds.scheduled
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
       count(*) filter (where fate in ('scheduled', 'held', 'unroutable') and not on_hold
                          and due_at < statement_timestamp() - %(grace)s::interval
                          and expected_at < statement_timestamp() - %(grace)s::interval) as overdue,
       count(*) filter (where fate = 'cancelled')                as cancelled,
       count(*) filter (where fate = 'held')                     as held,
       count(*) filter (where fate = 'discarded')                as discarded,
       count(*) filter (where fate = 'unseen')                   as unseen,
       count(*) filter (where recovered)                         as recovered,
       (select twice from notes)                                 as twice,
       count(*)                                                  as rounds
  from fates;

-- name: drift
-- How late returns were, in milliseconds; a negative smallest value would mean an early one.
select count(*)::int, coalesce(min(d), 0)::int, coalesce(percentile_disc(0.5) within group (order by d), 0)::int,
       coalesce(percentile_disc(0.99) within group (order by d), 0)::int, coalesce(max(d), 0)::int
  from (select (detail ->> 'drift_ms')::int as d from transition where state = 'returned') as returns;

-- name: waiting
-- What waits, for whom and until when: the next to come due first.
select queue, tier, due_at, retry_count, max_retries, coalesce(message_id, id::text)
  from retry
 where state = 'scheduled'
 order by due_at
 limit %(limit)s;

-- name: reviewed
-- The newest that went to review.
select retry.queue, coalesce(message_id, retry.id::text), transition.reason, transition.at
  from transition
  join retry on retry.id = retry_id
 where transition.state = 'in_review'
 order by transition.id desc
 limit %(limit)s;

-- name: retries_called
-- All retries of one message id, or the one with this retry id.
select id::text, message_id, queue, state, round, retry_count, max_retries, policy, error_class, error_type, error_reason,
       fingerprint, first_failed_at, due_at, returned_at, drift_ms, tier, octet_length(body)
  from retry
 where message_id = %(called)s or id = %(id)s::uuid
 order by first_failed_at;

-- name: retries_beginning
-- Retries whose ids begin so, unless a message has this very id.
select id::text, queue || ', ' || state
  from retry
 where id between %(low)s::uuid and %(high)s::uuid
   and not exists (select from retry where message_id = %(called)s)
 order by id
 limit %(limit)s;

-- name: fingerprints_beginning
-- Fingerprints that begin so, with the type of one such error. Steps through the index from one fingerprint to the next,
-- however many retries each of them has.
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
-- The timeline of one retry.
select round, state, at, actor, reason, detail from transition where retry_id = %(id)s order by id;

-- name: counts
-- The numbers of `tarry status`, from the books: one line. Each part has an index that it can be counted in.
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
    select count(*) as overdue
      from retry
     where state in ('scheduled', 'held', 'unroutable')
       and due_at < statement_timestamp() - %(grace)s::interval
       and expected_at < statement_timestamp() - %(grace)s::interval
       and not (state = 'held' and tarry_on_hold(queue, exchange, properties))
)
select in_all, in_a_minute, in_an_hour, in_review, held, unroutable, claimed, overdue from waiting, others, late;

-- name: paused
-- Destinations that are held or being released, and how much of theirs is held; and the intake, if it is paused.
select destination, state, since,
       (select count(*) from retry
         where retry.state = 'held' and tarry_destination(queue, exchange, properties) = hold.destination),
       problem
  from hold
 where state <> 'over'
 union all
select 'the intake', 'paused', at, null, reason from intake where paused
 order by 1;

-- name: open_by_tier
-- What the books have in each tier: how many, waiting since when, the next one due. All of it is in one index.
select tier, count(*), min(entered_at), min(due_at)
  from retry
 where state = 'scheduled'
 group by tier;

-- name: not_overdue_by_tier
-- How many can be in each tier by right: those that went there and are not overdue.
select tier, count(*)
  from retry
 where state = 'scheduled' and tier = any(%(tiers)s) and expected_at >= statement_timestamp() - %(grace)s::interval
 group by tier;

-- name: clock
-- Postgres's clock is the only one that the books know.
select clock_timestamp();

-- name: in_first_wait
-- How many must be in each of these tiers right now: in longer than the settling time, and not due to leave within it.
select tier, count(*)
  from retry
  join unnest(%(tiers)s::text[], %(ttls)s::bigint[]) as t (tier, ttl_ms) using (tier)
 where state = 'scheduled'
   and entered_at < statement_timestamp() - %(settle)s::interval
   and entered_at > statement_timestamp() + %(settle)s::interval - ttl_ms * interval '1 millisecond'
 group by tier;

-- name: rows_in_first_wait
-- The same, one by one; with `whole_way` those too that have gone on from there, for a broker that holds nothing at all.
select id::text, round, message_id, queue, exchange, state, tier, due_at, properties is not null and body is not null
  from retry
  join unnest(%(tiers)s::text[], %(ttls)s::bigint[]) as t (tier, ttl_ms) using (tier)
 where state = 'scheduled'
   and entered_at < statement_timestamp() - %(settle)s::interval
   and entered_at + (case when %(whole_way)s then greatest(delay_ms, ttl_ms) else ttl_ms end) * interval '1 millisecond'
       > statement_timestamp() + %(settle)s::interval
 order by due_at;

-- name: overdue_rows
-- What should have returned by now and was not seen to. A recovered one is expected from its recovery on.
select id::text, round, message_id, queue, exchange, state, tier, due_at, properties is not null and body is not null,
       expected_at
  from retry
 where state in ('scheduled', 'held', 'unroutable')
   and due_at < statement_timestamp() - %(grace)s::interval
   and expected_at < statement_timestamp() - %(grace)s::interval
   and not (state = 'held' and tarry_on_hold(queue, exchange, properties))
 order by due_at;

-- name: in_hold
-- How many must be in each held queue. While one is being released, its messages are in flight and not judged.
select hold.kind, hold.name, count(*)
  from retry
  join hold on hold.destination = tarry_destination(retry.queue, retry.exchange, retry.properties)
 where retry.state = 'held' and hold.state in ('holding', 'canary_failed')
   and retry.updated_at < statement_timestamp() - %(settle)s::interval
 group by hold.kind, hold.name;

-- name: rows_in_hold
-- The same, one by one, for these destinations.
select retry.id::text, round, message_id, queue, exchange, retry.state, tier, due_at,
       properties is not null and body is not null
  from retry
  join hold on hold.destination = tarry_destination(retry.queue, retry.exchange, retry.properties)
 where retry.state = 'held' and hold.state in ('holding', 'canary_failed')
   and retry.updated_at < statement_timestamp() - %(settle)s::interval
   and hold.destination = any(%(destinations)s)
 order by due_at;

-- name: stale_claims
-- Claims whose request should have been delivered again by now.
select id::text, round, message_id, queue, exchange, state, tier, claimed_at, false
  from retry
 where state = 'claimed' and claimed_at < statement_timestamp() - %(lease)s::interval
 order by claimed_at;

-- name: passed
-- Up to which expected moment each tier has let its messages go, as far as the tap has seen in the last hour; or had, so
-- long ago.
select tier, max(expected_at)
  from retry
 where state = 'returned' and returned_at > statement_timestamp() - interval '1 hour' and tier = any(%(tiers)s)
   and returned_at <= statement_timestamp() - %(ago)s::interval
 group by tier;

-- name: tap_seen
-- How far the tap has come.
select max(returned_at) from retry where state = 'returned';

-- name: to_rebuild
-- What is needed to send these again; one that has moved on in the meantime is left out.
select id::text, round, routing_key, queue, (extract(epoch from due_at) * 1000)::bigint, body, properties
  from retry
  join unnest(%(ids)s::uuid[], %(rounds)s::int[]) as wanted (id, round) using (id, round)
 where state in ('scheduled', 'held', 'unroutable') and body is not null and properties is not null
 order by due_at;

-- name: recovered
-- These were sent again, confirmed by the broker: where they wait now, and the note.
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
select id, round, 'recovered', %(actor)s, 'sent again from the books',
       jsonb_build_object('tier', tier, 'delay_ms', delay_ms)
  from sent;

-- name: written_off
-- A person says that nobody waits for these any more. What has moved on meanwhile is left alone.
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
-- As above, for what waits nowhere: it is in review again.
insert into transition (retry_id, round, state, actor, reason)
select id, round, 'recovered', %(actor)s, 'sent to review again from the books'
  from unnest(%(ids)s::uuid[], %(rounds)s::int[]) as s (id, round);

-- name: reviews_to_rebuild
-- What went to review and was not seen since, in slices.
select id::text, round, routing_key, body, properties
  from retry
 where state = 'in_review' and body is not null and properties is not null and id > %(after)s
 order by id
 limit %(limit)s;
