-- name: claim
-- Takes requests for this router, in one statement for a batch. A row comes back for each that is ours now; a request
-- without a row is a duplicate. A request that says which round failed is new if that round is the latest one; one that
-- does not is new if its retry is no longer waiting by this server's clock. A claim that was never confirmed is taken
-- over when its request is delivered again, or after the lease.
with request as (
    select *
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(knows_round)b::bool[], %(redelivered)b::bool[], %(counts)b::int[],
                  %(queues)b::text[], %(message_ids)b::text[], %(since_ms)b::bigint[])
           as r (id, round, knows_round, redelivered, retry_count, queue, message_id, since_ms)
),
again as (
    update retry as live
       set state       = 'claimed',
           round       = case when live.state = 'claimed' and not request.knows_round then live.round
                              when request.knows_round then request.round
                              else live.round + 1 end,
           retry_count = case when request.knows_round then request.retry_count else live.retry_count end,
           claimed_at  = clock_timestamp(),
           claimed_by  = %(actor)s,
           due_at      = null,
           returned_at = null,
           updated_at  = clock_timestamp()
      from request
     where live.id = request.id
       and case
           when live.state = 'claimed' and (live.round = request.round or not request.knows_round)
           then request.redelivered or live.claimed_at < clock_timestamp() - %(lease)s::interval
           when request.knows_round then request.round > live.round
           else live.state not in ('scheduled', 'held', 'unroutable') or live.due_at <= clock_timestamp()
           end
 returning live.id, live.round, live.retry_count, live.first_failed_at
),
fresh as (
    insert into retry (id, message_id, queue, state, round, retry_count, first_failed_at, claimed_at, claimed_by)
    select id, message_id, queue, 'claimed', round, retry_count,
           coalesce(to_timestamp(since_ms / 1000.0), clock_timestamp()), clock_timestamp(), %(actor)s
      from request
     where not exists (select from retry where retry.id = request.id)
     order by id
        on conflict (id) do nothing
 returning id, round, retry_count, first_failed_at
),
ours as (select * from again union all select * from fresh),
noted as (
    insert into transition (retry_id, round, state, actor)
    select id, round, 'claimed', %(actor)s from ours
)
select id, round, retry_count, (extract(epoch from first_failed_at) * 1000)::bigint from ours;

-- name: record
-- What became of a batch: the current rows and their history, in one statement. A row that the tap has already seen
-- return keeps that state; a row that is not there (Postgres was away at its claim) is made.
with done as (
    select *
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(states)b::text[], %(reasons)b::text[], %(queues)b::text[],
                  %(exchanges)b::text[], %(routing_keys)b::text[], %(message_ids)b::text[], %(counts)b::int[],
                  %(most)b::int[], %(policies)b::text[], %(classes)b::text[], %(types)b::text[],
                  %(error_reasons)b::text[], %(since_ms)b::bigint[], %(due_ms)b::bigint[], %(delay_ms)b::bigint[],
                  %(tiers)b::text[], %(bodies)b::bytea[], %(properties)b::bytea[])
           as d (id, round, state, reason, queue, exchange, routing_key, message_id, retry_count, max_retries, policy,
                 error_class, error_type, error_reason, since_ms, due_ms, delay_ms, tier, body, properties)
),
moved as (
    insert into retry as live (id, round, state, queue, exchange, routing_key, message_id, retry_count, max_retries,
                               policy, error_class, error_type, error_reason, first_failed_at, due_at, delay_ms, tier,
                               body, properties)
    select id, round, state, queue, exchange, routing_key, message_id, retry_count, max_retries, policy, error_class,
           error_type, error_reason, coalesce(to_timestamp(since_ms / 1000.0), clock_timestamp()),
           to_timestamp(due_ms / 1000.0), delay_ms, tier, body, properties
      from done
     order by id
        on conflict (id) do update
       set state        = case when live.round = excluded.round and live.state <> 'claimed'
                               then live.state else excluded.state end,
           round        = excluded.round,
           exchange     = excluded.exchange,
           routing_key  = excluded.routing_key,
           retry_count  = excluded.retry_count,
           max_retries  = excluded.max_retries,
           policy       = excluded.policy,
           error_class  = excluded.error_class,
           error_type   = excluded.error_type,
           error_reason = excluded.error_reason,
           due_at       = excluded.due_at,
           delay_ms     = excluded.delay_ms,
           tier         = excluded.tier,
           body         = excluded.body,
           properties   = excluded.properties,
           updated_at   = clock_timestamp()
     where live.round <= excluded.round
)
insert into transition (retry_id, round, state, actor, reason, detail)
select id, round, state, %(actor)s, reason,
       case when due_ms is not null
            then jsonb_build_object('due', to_timestamp(due_ms / 1000.0), 'tier', tier, 'attempt', retry_count) end
  from done;

-- name: note
-- Facts that change no state: duplicates above all.
insert into transition (retry_id, round, state, actor, reason)
select *, %(actor)s, %(reason)s from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(notes)b::text[]) as n (id, round, note);

-- name: returned
-- The tap's proof: these rounds came back, so much after they were due. A later round may already have begun, so the
-- history tells a first sighting from a second one. A second one is noted as a duplicate, unless the broker says that it
-- is the same sighting delivered again.
with seen as (
    select *, to_timestamp(at_ms / 1000.0) as at, (at_ms - due_ms)::int as drift_ms,
           row_number() over (partition by id, round order by at_ms) as sighting
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(queues)b::text[], %(counts)b::int[], %(due_ms)b::bigint[],
                  %(at_ms)b::bigint[], %(redelivered)b::bool[])
           as s (id, round, queue, retry_count, due_ms, at_ms, redelivered)
),
judged as (
    select *, sighting > 1 or exists (select from transition
                                       where retry_id = seen.id and transition.round = seen.round
                                         and state = 'returned') as again
      from seen
),
moved as (
    insert into retry as live (id, round, state, queue, retry_count, due_at, returned_at, drift_ms)
    select distinct on (id) id, round, 'returned', queue, retry_count, to_timestamp(due_ms / 1000.0), at, drift_ms
      from judged
     where not again
     order by id, round desc
        on conflict (id) do update
       set state       = 'returned',
           round       = excluded.round,
           returned_at = excluded.returned_at,
           drift_ms    = excluded.drift_ms,
           updated_at  = clock_timestamp()
     where live.round < excluded.round
        or (live.round = excluded.round and live.state in ('claimed', 'scheduled', 'held', 'unroutable'))
)
insert into transition (retry_id, round, state, actor, at, detail)
select id, round, case when again then 'duplicate' else 'returned' end, %(actor)s, at,
       jsonb_build_object('drift_ms', drift_ms)
  from judged
 where not (again and redelivered);

-- name: balance
-- How the books stand: one line.
select count(*)                                                        as retries,
       (select count(*) from transition where state = 'scheduled')     as scheduled,
       (select count(*) from transition where state = 'returned')      as returned,
       count(*) filter (where state = 'in_review')                     as in_review,
       count(*) filter (where state in ('scheduled', 'held'))          as waiting,
       count(*) filter (where state = 'claimed')                       as claimed,
       count(*) filter (where state = 'unroutable')                    as unroutable,
       (select count(*) from transition where state = 'duplicate')     as duplicates,
       count(*) filter (where state = 'scheduled' and due_at < clock_timestamp() - %(grace)s::interval) as overdue
  from retry;

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
