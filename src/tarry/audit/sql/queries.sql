-- name: configure
-- For each new connection. Statements here look up a batch of ids in tables that only grow. Left to itself Postgres reads
-- the whole table while it is small, keeps that plan, and gets slower with every retry that was ever made.
select set_config('statement_timeout', '4s', false),
       set_config('plan_cache_mode', 'force_custom_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('random_page_cost', '1.1', false),
       set_config('jit', 'off', false);

-- name: claim
-- Takes requests for this router, in one statement for a batch. A row comes back for each that is ours now; a request
-- without a row is a duplicate. A request that says which round failed is new if that round is the latest one; one that
-- does not is new if its retry is no longer waiting by this server's clock. What another router has claimed and not had
-- confirmed yet is undecided: its request may be the same as this one, and then this is a duplicate; or that router was
-- cut off, or claimed for a request that was long done, and then nobody else will ever do it. So for a while after the
-- claim, and while its row is not committed, the answer is to ask again; then it is taken over. The while is shorter for
-- a request that is delivered again, since that is what a cut-off router leaves behind. A claim of our own that we are
-- asked for again is taken up at once: whoever asks has seen to it that it is not being moved here.
-- It does not wait for the disk: a claim that a crash of Postgres takes with it was never acted on as far as the books
-- know, and its record, which does wait, makes the row anew.
with request as (
    select r.*
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(knows_round)b::bool[], %(redelivered)b::bool[], %(counts)b::int[],
                  %(queues)b::text[], %(message_ids)b::text[], %(since_ms)b::bigint[])
           as r (id, round, knows_round, redelivered, retry_count, queue, message_id, since_ms),
           set_config('synchronous_commit', 'off', true)
),
known as (
    -- Locked in one order, so that two routers with the same ids wait for each other instead of ending in a deadlock.
    select request.*, live.state, live.round as live_round, live.retry_count as live_count, live.due_at, live.claimed_at,
           live.claimed_by, live.updated_at
      from request
      join retry as live using (id)
     order by live.id
       for update of live
),
judged as (
    -- A request without our headers for a retry that is over begins a new life: somebody sent the message anew. If it
    -- is only the last one delivered again, after a crash between record and acknowledgement, it goes on counting.
    select *,
           not knows_round
           and state in ('succeeded', 'in_review', 'cancelled', 'discarded')
           and not (redelivered and updated_at > clock_timestamp() - %(lease)s::interval) as new_life,
           state = 'claimed' and (round = live_round or not knows_round) and claimed_by <> %(actor)s
           and claimed_at > clock_timestamp() - case when redelivered then %(moment)s::interval
                                                     else %(doubt)s::interval end as too_early,
           case when state = 'claimed' and (round = live_round or not knows_round) then true
                when knows_round then round > live_round
                when state in ('scheduled', 'held', 'unroutable') then due_at <= clock_timestamp()
                else true
                end as granted
      from known
),
again as (
    update retry as live
       set state           = 'claimed',
           round           = case when request.knows_round then request.round
                                  when request.state = 'claimed' then request.live_round
                                  else request.live_round + 1 end,
           -- A request without our headers that is delivered again may be a new failure, or the very one whose round is
           -- over, after a crash before its acknowledgement. It goes another round, and spends no attempt by it: a
           -- message that is through must not be called exhausted.
           retry_count     = case when request.new_life then request.retry_count
                                  when not request.knows_round and request.redelivered
                                       and request.state in ('scheduled', 'held', 'unroutable', 'returned', 'succeeded')
                                  then greatest(request.live_count - 1, 0)
                                  when not request.knows_round then request.live_count
                                  when request.state = 'in_review' then request.retry_count
                                  else greatest(request.retry_count, request.live_count) end,
           first_failed_at = case when request.new_life
                                  then coalesce(to_timestamp(request.since_ms / 1000.0), clock_timestamp())
                                  else live.first_failed_at end,
           claimed_at      = clock_timestamp(),
           claimed_by      = %(actor)s,
           due_at          = null,
           returned_at     = null,
           updated_at      = clock_timestamp()
      from judged as request
     where live.id = request.id and request.granted and not request.too_early
 returning live.id, live.round, live.retry_count, live.first_failed_at
),
fresh as (
    insert into retry (id, message_id, queue, state, round, retry_count, first_failed_at, claimed_at, claimed_by)
    select id, message_id, queue, 'claimed', round, retry_count,
           coalesce(to_timestamp(since_ms / 1000.0), clock_timestamp()), clock_timestamp(), %(actor)s
      from request
     where not exists (select from known where known.id = request.id)
     order by id
        on conflict (id) do nothing
 returning id, round, retry_count, first_failed_at
),
ours as (select * from again union all select * from fresh),
noted as (
    insert into transition (retry_id, round, state, actor)
    select id, round, 'claimed', %(actor)s from ours
)
select id::text, round, retry_count, (extract(epoch from first_failed_at) * 1000)::bigint as since_ms,
       false as ask_again
  from ours
 union all
select id::text, round, retry_count, since_ms, true from judged where too_early
 union all
select id::text, round, retry_count, since_ms, true
  from request
 where not exists (select from known where known.id = request.id)
   and not exists (select from ours where ours.id = request.id);

-- name: give_back
-- Claims that nothing follows from: their requests had been given to another router when we claimed them. What the claim
-- replaced stands again, by the history; only a round that nobody knew before stays claimed, until its request comes again.
-- Whoever has taken over since, or seen it return, is right. Round 0 stands for whatever round it is claimed in.
with given as (
    select live.id, live.round
      from unnest(%(ids)b::uuid[], %(rounds)b::int[]) as g (id, round)
      join retry as live on live.id = g.id and g.round in (0, live.round)
     where live.state = 'claimed' and live.claimed_by = %(actor)s
),
before as (
    select given.id, given.round as claimed_round, last.state, last.round,
           (scheduled.detail ->> 'due_ms')::bigint as due_ms, (scheduled.detail ->> 'attempt')::int as retry_count,
           case when last.state = 'returned' then last.at end as returned_at
      from given
     cross join lateral (select state, round, at
                           from transition
                          where retry_id = given.id and round < given.round
                            and state not in ('claimed', 'duplicate', 'overdue', 'recovered')
                          order by id desc
                          limit 1) as last
      left join lateral (select detail
                           from transition
                          where retry_id = given.id and round = last.round and state = 'scheduled'
                          order by id desc
                          limit 1) as scheduled on true
),
moved as (
    update retry as live
       set state       = before.state,
           round       = before.round,
           retry_count = coalesce(before.retry_count, live.retry_count),
           due_at      = coalesce(to_timestamp(before.due_ms / 1000.0), live.due_at),
           returned_at = before.returned_at,
           updated_at  = clock_timestamp()
      from before
     where live.id = before.id and live.round = before.claimed_round
       and live.state = 'claimed' and live.claimed_by = %(actor)s
 returning live.id, before.claimed_round
)
insert into transition (retry_id, round, state, actor, reason)
select id, claimed_round, 'duplicate', %(actor)s, 'its request was another router''s by then: the claim was given back'
  from moved;

-- name: record
-- What became of a batch: the current rows and their history, in one statement. A row that is past `claimed` in the same
-- round keeps its state (the tap was faster), unless a person has to decide after all; a row that is not there (Postgres
-- was away at its claim) is made. Records that come late, through the spool, change no later round.
with done as (
    select *
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(states)b::text[], %(reasons)b::text[], %(queues)b::text[],
                  %(exchanges)b::text[], %(routing_keys)b::text[], %(message_ids)b::text[], %(counts)b::int[],
                  %(most)b::int[], %(policies)b::text[], %(classes)b::text[], %(types)b::text[],
                  %(error_reasons)b::text[], %(fingerprints)b::text[], %(since_ms)b::bigint[], %(due_ms)b::bigint[],
                  %(delay_ms)b::bigint[], %(tiers)b::text[], %(bodies)b::bytea[], %(properties)b::bytea[])
           as d (id, round, state, reason, queue, exchange, routing_key, message_id, retry_count, max_retries, policy,
                 error_class, error_type, error_reason, fingerprint, since_ms, due_ms, delay_ms, tier, body, properties)
),
moved as (
    insert into retry as live (id, round, state, queue, exchange, routing_key, message_id, retry_count, max_retries,
                               policy, error_class, error_type, error_reason, fingerprint, first_failed_at, entered_at,
                               due_at, expected_at, delay_ms, tier, review_reason, body, properties)
    select id, round, state, queue, exchange, routing_key, message_id, retry_count, max_retries, policy, error_class,
           error_type, error_reason, fingerprint, coalesce(to_timestamp(since_ms / 1000.0), clock_timestamp()),
           to_timestamp((due_ms - delay_ms) / 1000.0), to_timestamp(due_ms / 1000.0), to_timestamp(due_ms / 1000.0),
           delay_ms, tier, case when state = 'in_review' then reason end, body, properties
      from done
     order by id
        on conflict (id) do update
       set state        = case when live.round < excluded.round or live.state = 'claimed' then excluded.state
                               when excluded.state = 'in_review'
                                and live.state in ('scheduled', 'returned', 'unroutable') then 'in_review'
                               else live.state end,
           round        = excluded.round,
           exchange     = excluded.exchange,
           routing_key  = excluded.routing_key,
           message_id   = coalesce(excluded.message_id, live.message_id),
           retry_count  = excluded.retry_count,
           max_retries  = coalesce(excluded.max_retries, live.max_retries),
           policy       = excluded.policy,
           error_class  = coalesce(excluded.error_class, live.error_class),
           error_type   = coalesce(excluded.error_type, live.error_type),
           error_reason = coalesce(excluded.error_reason, live.error_reason),
           fingerprint  = coalesce(excluded.fingerprint, live.fingerprint),
           entered_at   = excluded.entered_at,
           due_at       = excluded.due_at,
           expected_at  = excluded.expected_at,
           delay_ms     = excluded.delay_ms,
           tier         = excluded.tier,
           review_reason = coalesce(excluded.review_reason, live.review_reason),
           body         = excluded.body,
           properties   = excluded.properties,
           updated_at   = clock_timestamp()
     where live.round <= excluded.round
)
insert into transition (retry_id, round, state, actor, reason, detail)
select id, round, state, %(actor)s, reason,
       case when due_ms is not null
            then jsonb_build_object('due_ms', due_ms, 'delay_ms', delay_ms, 'tier', tier, 'attempt', retry_count) end
  from done;

-- name: note
-- Facts that change no state: duplicates above all.
insert into transition (retry_id, round, state, actor, reason)
select *, %(actor)s, %(reason)s from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(notes)b::text[]) as n (id, round, note);

-- name: strayed
-- These rounds found no way home and came to the unroutable queue; whoever sends them on is seen by the tap again.
with found as (
    select * from unnest(%(ids)b::uuid[], %(rounds)b::int[]) as f (id, round)
),
moved as (
    update retry as live
       set state = 'unroutable', updated_at = clock_timestamp()
      from found
     where live.id = found.id and live.round = found.round
       and live.state in ('claimed', 'scheduled', 'held', 'returned')
)
insert into transition (retry_id, round, state, actor)
select id, round, 'unroutable', %(actor)s from found;

-- name: returned
-- The tap's proof: these rounds came back, so much after they were due. A later round may already have begun. A second
-- sighting of a round is noted as a duplicate, unless the broker says that it is the same one delivered again; a round
-- that was unroutable or held in between is sighted anew. Sightings may come out of order when several taps read: only then,
-- and it is rare, is the history asked whether a round was seen before.
with seen as (
    select *, to_timestamp(at_ms / 1000.0) as at,
           greatest(least(at_ms - due_ms, 2147483647), -2147483648)::int as drift_ms,
           row_number() over (partition by id, round order by at_ms) as sighting
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(queues)b::text[], %(counts)b::int[], %(due_ms)b::bigint[],
                  %(at_ms)b::bigint[], %(redelivered)b::bool[])
           as s (id, round, queue, retry_count, due_ms, at_ms, redelivered)
),
judged as (
    select seen.*,
           case when sighting > 1 then true
                when live.id is null or seen.round > live.returned_round then false
                when seen.round = live.returned_round then live.round > seen.round or live.state not in ('unroutable', 'held')
                else exists (select from transition
                              where retry_id = seen.id and transition.round = seen.round and state = 'returned')
           end as again
      from seen
      left join retry as live using (id)
),
moved as (
    insert into retry as live (id, round, returned_round, state, queue, retry_count, due_at, returned_at, drift_ms)
    select distinct on (id) id, round, round, 'returned', queue, retry_count, to_timestamp(due_ms / 1000.0), at, drift_ms
      from judged
     where not again
     order by id, round desc
        on conflict (id) do update
       set state          = case when live.round < excluded.round then 'returned'
                                 when live.round = excluded.round
                                  and live.state in ('claimed', 'scheduled', 'held', 'unroutable', 'cancelled', 'discarded')
                                 then 'returned'
                                 else live.state end,
           round          = greatest(live.round, excluded.round),
           returned_round = greatest(live.returned_round, excluded.returned_round),
           returned_at    = case when live.round <= excluded.round then excluded.returned_at else live.returned_at end,
           drift_ms       = case when live.round <= excluded.round then excluded.drift_ms else live.drift_ms end,
           updated_at     = clock_timestamp()
)
insert into transition (retry_id, round, state, actor, at, reason, detail)
select id, round, case when again then 'duplicate' else 'returned' end, %(actor)s, at,
       case when again then 'it returned again' end, jsonb_build_object('drift_ms', drift_ms)
  from judged
 where not (again and redelivered)
 order by id, round, sighting;

-- name: succeeded
-- What consumers report: these rounds were dealt with. A round that is over by another way stays as it is, a later round
-- stands above an earlier one's success, and of a retry that is not in the books nothing is written. Each round is
-- reported once, however often it is told; one that was only presumed to have succeeded is proven by it.
with told as (
    select distinct on (id, round) *
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(counts)b::int[], %(at_ms)b::bigint[], %(durations_ms)b::bigint[])
           as t (id, round, retry_count, at_ms, duration_ms)
     order by id, round, at_ms
),
known as (
    select told.*, live.state, live.round as live_round
      from told
      join retry as live using (id)
     where told.round < live.round
        or (told.round = live.round and live.state in ('scheduled', 'returned', 'succeeded'))
     order by live.id
       for update of live
),
moved as (
    update retry as live
       set state = 'succeeded', updated_at = clock_timestamp()
      from known
     where live.id = known.id and live.round = known.round and known.state in ('scheduled', 'returned')
)
insert into transition (retry_id, round, state, actor, reason, detail)
select id, round, 'succeeded', 'reported', 'its consumer said so',
       jsonb_build_object('attempt', retry_count, 'duration_ms', duration_ms, 'at_ms', at_ms)
  from known
 where not exists (select from transition as before
                    where before.retry_id = known.id and before.round = known.round
                      and before.state = 'succeeded' and before.actor = 'reported');

-- name: cancelled
-- These rounds were diverted at a gate. Whoever asked for it is told, by the diversion, and stands in the history. A round
-- that is being retried now is not over by this: its next round begins. One that is over, and that nobody asked to
-- divert, has a copy less on its way: a duplicate.
with seen as (
    select distinct on (id) *, to_timestamp(at_ms / 1000.0) as at
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(at_ms)b::bigint[], %(redelivered)b::bool[])
           as s (id, round, at_ms, redelivered)
     order by id, round desc
),
asked as (
    update diversion
       set diverted_at = coalesce(diverted_at, seen.at)
      from seen
     where diversion.retry_id = seen.id and diversion.round = seen.round and diversion.unbound_at is null
 returning diversion.retry_id as id, diversion.kind, diversion.actor, diversion.reason
),
moved as (
    update retry as live
       set state = 'cancelled', updated_at = clock_timestamp()
      from seen
      left join asked using (id)
     where live.id = seen.id and live.round = seen.round
       and live.state in ('claimed', 'scheduled', 'held', 'unroutable')
       and asked.kind is distinct from 'retry_now'
 returning live.id
)
insert into transition (retry_id, round, state, actor, at, reason)
select seen.id, seen.round, case when moved.id is null then 'duplicate' else 'cancelled' end,
       coalesce(asked.actor, %(actor)s), seen.at,
       case when moved.id is null then 'cancelled when it was over' else asked.reason end
  from seen
  left join moved using (id)
  left join asked using (id)
  left join retry as live using (id)
 where moved.id is not null
    or (asked.kind is distinct from 'retry_now'
        and not (seen.redelivered
                 or (live.round = seen.round and live.state = 'cancelled')
                 or (live.round > seen.round and asked.id is not null)));

-- name: ping
-- Whether it can be written to: reading would do for a database that is full, read-only or without our tables.
update tarry_probe set at = clock_timestamp();
