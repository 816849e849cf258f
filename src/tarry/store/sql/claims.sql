-- name: configure
-- Settings for each new connection. Statements here look up a batch of ids in tables that only grow. By default
-- Postgres scans the whole table while it is small, keeps that plan, and gets slower with every retry that was ever
-- made.
select set_config('statement_timeout', '4s', false),
       set_config('plan_cache_mode', 'force_custom_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('random_page_cost', '1.1', false),
       set_config('jit', 'off', false);

-- name: claim
-- Claims a batch of requests for this router in one statement, and returns a verdict for each:
--   granted    this router owns the request: a round of the retry returned with it.
--   duplicate  the same request again, of a round that is waiting or over.
--   wait       undecided: another router has claimed that round and its claim is not confirmed yet. Its request may be
--              the same as this one, and then this is a duplicate; or that router was disconnected, and then no other
--              router will ever handle it. So for some time after the claim, and while its row is not committed, the
--              router asks again; then it takes over. The time is shorter for a redelivered request, since a
--              disconnected router leaves such requests.
--   apart      it names a round of a retry that is not its own: another message with copied headers, one whose retry
--              was taken by a request without headers, or one that began while Postgres was unavailable and the retry
--              was long over. The router asks again, for a new retry.
--
-- A request that says which round failed is new if that round is the latest one. A request that does not is matched by
-- its identity (queue, message id, content): it repeats a request that waits, or begins the next round of one that has
-- come due. If only queue, message id and body match, it is never a duplicate and only continues the count: some
-- consumers lose headers. For dead-lettered requests the broker's redelivered flag says nothing (from RabbitMQ 4 on it
-- is always set), but x-death does: the same x-death again is the same request, a different one while the first still
-- waits is another message.
--
-- A claim that the same router asks for again is granted at once: the router ensures that it is not processing it
-- already. A statement that runs after its deadline grants nothing: the router has given up on it, and no router would
-- own the round. The statement does not wait for the disk (synchronous_commit is off): a claim that is lost in a crash
-- of Postgres was never acted on as far as the audit knows, and its record, which does wait, creates the row again.
with moment as materialized (
    select clock_timestamp() as now, clock_timestamp() > to_timestamp(%(deadline_ms)s / 1000.0) as late,
           set_config('synchronous_commit', 'off', true)
),
request as materialized (
    -- Due by this clock, or by the clock of the router that wrote the due time, which may be slightly ahead.
    select r.*, moment.now, moment.now + %(skew)s::interval as due_by,
           (left(r.identity::text, 18) || '-0000-000000000000')::uuid as least_identity,
           (left(r.identity::text, 18) || '-ffff-ffffffffffff')::uuid as greatest_identity
      from moment,
           unnest(%(ids)b::uuid[], %(rounds)b::int[], %(knows_round)b::bool[], %(redelivered)b::bool[], %(counts)b::int[],
                  %(queues)b::text[], %(message_ids)b::text[], %(since_ms)b::bigint[], %(identities)b::uuid[],
                  %(matchable)b::bool[], %(deaths)b::text[], %(by_content)b::bool[])
           as r (id, round, knows_round, redelivered, retry_count, queue, message_id, since_ms, identity, matchable, death,
                 by_content)
     where not moment.late
),
target as materialized (
    -- The row that each request is judged by: the retry that it names, or the one with a matching identity. A retry
    -- that has come due is preferred to one that waits, since it begins a round and drops nothing. If very many match,
    -- only some are examined.
    select request.id as asked,
           coalesce(case when not request.knows_round and request.matchable
                          and not exists (select from retry where retry.id = request.id and retry.state = 'claimed') then
               (select open.id
                  from (select live.id, live.identity = request.identity as exact, live.state, live.returned_at,
                               live.state = 'returned'
                               or (live.state <> 'claimed' and coalesce(live.due_at <= request.due_by, true)) as due,
                               request.by_content and request.death is not null and live.id <> request.id
                               and live.death is distinct from request.death as other_death
                          from retry as live
                         where live.identity between request.least_identity and request.greatest_identity
                           and live.identity is not null
                           and live.state in ('claimed', 'scheduled', 'held', 'unroutable', 'returned')
                         limit 64) as open
                 where open.due or (open.exact and not open.other_death)
                 order by open.state = 'claimed' desc, open.due desc, open.exact desc, open.returned_at, open.id
                 limit 1) end, request.id) as id
      from request
),
known as (
    -- Locked in a fixed order, so that two routers with the same ids wait for each other instead of deadlocking.
    select request.*, live.id as live_id, live.state, live.round as live_round, live.retry_count as live_count,
           live.due_at, live.claimed_at, live.claimed_by, live.updated_at, live.first_failed_at, live.guessed_round,
           live.free,
           -- The id of a retry is derived from identity and x-death of its first request, so an equal id is that
           -- request too.
           case when request.death is not null then coalesce(live.death = request.death, false) or live.id = request.id
                else request.redelivered end as again,
           coalesce(live.identity = request.identity, request.knows_round or live.id = request.id) as same,
           request.by_content and request.death is not null and live.id <> request.id
           and live.death is distinct from request.death as other_death,
           -- A later retry than this one: its first request was granted from memory, with an id that was already in
           -- use.
           coalesce(to_timestamp(request.since_ms / 1000.0) > live.first_failed_at + %(skew)s::interval, false) as later
      from request
      join target on target.asked = request.id
      join retry as live on live.id = target.id
     order by live.id
       for update of live
),
judged as (
    select known.*,
           -- Each row accepts one request of a batch; the others ask again.
           row_number() over (partition by live_id order by knows_round desc, id) as turn,
           case when knows_round and round > live_round                          then 'next'
                when knows_round and (not same or later or round <= guessed_round) then 'apart'
                when knows_round and state = 'claimed' and round = live_round    then 'same round'
                when knows_round                                                 then 'duplicate'
                when not matchable                                               then 'new'
                when state = 'claimed' and same and not other_death              then 'same round'
                when state in ('scheduled', 'held', 'unroutable') and same and not other_death
                 -- The same request again is not a new failure, whatever the clocks say.
                 and due_at > case when again then now else due_by end           then 'duplicate'
                when state = 'returned'
                  or (state in ('scheduled', 'held', 'unroutable') and coalesce(due_at <= due_by, true)) then 'next'
                -- Finished, in review, or another message: the request gets a new retry.
                else 'new' end as verdict
      from known
),
decided as (
    select judged.*,
           (verdict in ('next', 'same round') and turn > 1)
           or (verdict = 'same round' and claimed_by is distinct from %(actor)s
               and coalesce(claimed_at > now - case when again then %(moment)s::interval else %(undecided)s::interval end,
                            false)) as too_early,
           -- A request without headers that is delivered again may be a new failure, or the request whose round is
           -- over, after a crash before its acknowledgement. It gets another round that uses no attempt, but never two
           -- such rounds in a row: a message must neither count as exhausted too early nor be retried forever.
           verdict = 'next' and not knows_round and again and not free as is_free,
           -- The same after the retry went to review, was skipped or succeeded: the request gets a new retry, which
           -- continues the count.
           verdict = 'new' and again and state in ('in_review', 'skipped', 'succeeded')
           and (death is not null or updated_at > now - %(lease)s::interval) as counts_on
      from judged
),
moved as (
    update retry as live
       set state           = 'claimed',
           round           = case when request.knows_round then request.round
                                  when request.verdict = 'same round' then request.live_round
                                  else request.live_round + 1 end,
           retry_count     = case when request.is_free then greatest(request.live_count - 1, 0)
                                  when not request.knows_round then request.live_count
                                  when request.state = 'in_review' then request.retry_count
                                  else greatest(request.retry_count, request.live_count) end,
           identity        = coalesce(request.identity, live.identity),
           death           = request.death,
           -- Not if it is the previous request, delivered again: then any other message that results from it is a copy.
           guessed_round   = case when request.verdict = 'same round' or request.knows_round
                                    or (request.again and request.same) then live.guessed_round
                                  else request.live_round + 1 end,
           free            = case when request.verdict = 'same round' then request.free else request.is_free end,
           -- A claim of the same router keeps its time; otherwise a router that waits for it would wait forever.
           claimed_at      = case when request.verdict = 'same round' and request.claimed_by = %(actor)s
                                  then live.claimed_at else clock_timestamp() end,
           claimed_by      = %(actor)s,
           claim_token     = %(token)s,
           due_at          = null,
           returned_at     = null,
           updated_at      = clock_timestamp()
      from decided as request
     where live.id = request.live_id and request.verdict in ('next', 'same round') and not request.too_early
 returning request.id as asked, live.id, live.round, live.retry_count, live.first_failed_at
),
newcomer as materialized (
    -- A new retry takes the id of its request, or a random one if a finished retry already has that id.
    select request.*,
           case when exists (select from retry where retry.id = request.id) then gen_random_uuid()
                else request.id end as new_id,
           case when not decided.counts_on or decided.counts_on is null then request.retry_count
                when decided.state in ('in_review', 'skipped') then decided.live_count
                else greatest(decided.live_count - 1, 0) end as new_count,
           case when decided.counts_on then decided.first_failed_at
                else coalesce(to_timestamp(request.since_ms / 1000.0), clock_timestamp()) end as new_since
      from request
      left join decided on decided.id = request.id
     where decided.id is null or decided.verdict = 'new'
),
fresh as (
    insert into retry (id, message_id, queue, state, round, retry_count, first_failed_at, claimed_at, claimed_by,
                       claim_token, identity, death)
    select new_id, message_id, queue, 'claimed', round, new_count, new_since, clock_timestamp(), %(actor)s, %(token)s,
           identity, death
      from newcomer
     order by new_id
        on conflict (id) do nothing
 returning id, round, retry_count, first_failed_at
),
ours as (
    select * from moved
     union all
    select newcomer.id, fresh.* from fresh join newcomer on newcomer.new_id = fresh.id
),
noted as (
    insert into transition (retry_id, round, state, actor)
    select id, round, 'claimed', %(actor)s from ours
)
select null::text as asked, null::text as id, null::int as round, null::int as retry_count,
       (extract(epoch from now) * 1000)::bigint as since_ms, case when late then 'late' else 'clock' end as verdict
  from moment
 union all
select asked::text, id::text, round, retry_count, (extract(epoch from first_failed_at) * 1000)::bigint, 'granted' from ours
 union all
select id::text, live_id::text, live_round, live_count, since_ms, case when too_early then 'wait' else verdict end
  from decided
 where too_early or verdict in ('duplicate', 'apart')
 union all
select id::text, new_id::text, round, retry_count, since_ms, 'wait'
  from newcomer
 where not exists (select from fresh where fresh.id = newcomer.new_id);

-- name: give_back
-- Gives back claims that had no result. The state before the claim is restored from the history. A first round has no
-- earlier state: with `forget` its row is deleted, and created again by the next claim or by a record; otherwise it
-- stays claimed until its request is delivered again. A router that has taken over since, or a return seen since, takes
-- precedence. Null parameters do not restrict: `of` selects one router, `tokens` some statements, `ids` and `rounds`
-- some retries, `older_than` a minimum age.
with given as (
    select live.id, live.round, live.returned_round, live.claimed_at
      from retry as live
     where live.state = 'claimed'
       and (%(of)s::text is null or live.claimed_by = %(of)s)
       and (%(tokens)s::bigint[] is null or live.claim_token = any(%(tokens)s))
       and (%(ids)s::uuid[] is null
            or exists (select from unnest(%(ids)s::uuid[], %(rounds)s::int[]) as g (id, round)
                        where g.id = live.id and g.round = live.round))
       and (%(older_than)s::interval is null or live.claimed_at < statement_timestamp() - %(older_than)s::interval)
),
before as (
    -- A record that arrived late, through the spool, is in the history after the return that it led to.
    select given.id, given.round as claimed_round, given.claimed_at, last.round,
           case when came_back then 'returned' else last.state end as state,
           (scheduled.detail ->> 'due_ms')::bigint as due_ms, (scheduled.detail ->> 'attempt')::int as retry_count,
           case when came_back then last.at end as returned_at
      from given
     cross join lateral (select state, round, at
                           from transition
                          where retry_id = given.id and round < given.round
                            and state not in ('claimed', 'duplicate', 'overdue', 'missing', 'recovered', 'started', 'stuck',
                                              'layover')
                          order by id desc
                          limit 1) as last
     cross join lateral (select last.state = 'returned'
                                or (last.state in ('scheduled', 'held', 'unroutable')
                                    and given.returned_round >= last.round)) as seen (came_back)
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
     where live.id = before.id and live.round = before.claimed_round and live.state = 'claimed'
       and live.claimed_at = before.claimed_at
 returning live.id, before.claimed_round
),
forgotten as (
    delete from retry as live
     using given
     where %(forget)s and live.id = given.id and live.round = given.round and live.state = 'claimed'
       and live.claimed_at = given.claimed_at and not exists (select from before where before.id = given.id)
 returning live.id, live.round
)
insert into transition (retry_id, round, state, actor, reason)
select id, round, 'duplicate', %(actor)s, 'the claim had no result and was given back'
  from (select * from moved union all select * from forgotten) as given_back (id, round);

-- name: close_superseded
-- Deletes first claims older than this whose request was delivered again and handled as another retry: after an outage,
-- a change of a policy or of the version. The other retry is later, has the same queue and message id, and its identity
-- does not differ.
with superseded as (
    delete from retry as old
     where old.state = 'claimed' and old.claimed_at < statement_timestamp() - %(older_than)s::interval
       and old.message_id is not null
       and not exists (select from transition
                        where retry_id = old.id and state not in ('claimed', 'duplicate', 'overdue', 'missing', 'recovered', 'started', 'stuck',
                                              'layover'))
       and exists (select from retry as later
                    where later.message_id = old.message_id and later.queue = old.queue and later.id <> old.id
                      and later.updated_at > old.claimed_at
                      and (later.identity = old.identity or old.identity is null or later.identity is null
                           or right(old.identity::text, 18) = '-0000-000000000000'
                           or right(later.identity::text, 18) = '-0000-000000000000'))
 returning old.id, old.round
)
insert into transition (retry_id, round, state, actor, reason)
select id, round, 'duplicate', %(actor)s, 'its request was delivered again and handled as another retry'
  from superseded;

-- name: record
-- Writes the outcome of a batch: the current rows and their history, in one statement. A row that is past `claimed` in
-- the same round keeps its state (the tap was faster), unless the record sends it to review, or another router skipped
-- it: there is a message. Not if it was skipped when it was due: there was one. A skip changes only a row that is claimed
-- or skipped, since there may be a message. A row that does not exist
-- (Postgres was unavailable at its claim) is created. Records that arrive late, through the spool, change no later round.
with done as (
    select *
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(states)b::text[], %(reasons)b::text[], %(queues)b::text[],
                  %(exchanges)b::text[], %(routing_keys)b::text[], %(message_ids)b::text[], %(counts)b::int[],
                  %(most)b::int[], %(policies)b::text[], %(classes)b::text[], %(types)b::text[],
                  %(error_reasons)b::text[], %(fingerprints)b::text[], %(since_ms)b::bigint[], %(due_ms)b::bigint[],
                  %(delay_ms)b::bigint[], %(tiers)b::text[], %(bodies)b::bytea[], %(properties)b::bytea[],
                  %(identities)b::uuid[], %(deaths)b::text[], %(guessed)b::int[], %(owners)b::text[],
                  %(job_types)b::text[], %(priorities)b::text[], %(details)b::text[])
           as d (id, round, state, reason, queue, exchange, routing_key, message_id, retry_count, max_retries, policy,
                 error_class, error_type, error_reason, fingerprint, since_ms, due_ms, delay_ms, tier, body, properties,
                 identity, death, guessed_round, owner, job_type, priority, detail)
),
moved as (
    insert into retry as live (id, round, state, queue, exchange, routing_key, message_id, retry_count, max_retries,
                               policy, error_class, error_type, error_reason, fingerprint, first_failed_at, entered_at,
                               due_at, expected_at, delay_ms, tier, review_reason, body, properties, identity, death,
                               guessed_round, owner, job_type, priority)
    select id, round, state, queue, exchange, routing_key, message_id, retry_count, max_retries, policy, error_class,
           error_type, error_reason, fingerprint, coalesce(to_timestamp(since_ms / 1000.0), clock_timestamp()),
           to_timestamp((due_ms - delay_ms) / 1000.0), to_timestamp(due_ms / 1000.0), to_timestamp(due_ms / 1000.0),
           delay_ms, tier, case when state = 'in_review' then reason end, body, properties, identity, death, guessed_round,
           owner, job_type, priority
      from done
     order by id
        on conflict (id) do update
       set state        = case when live.round < excluded.round or live.state = 'claimed' then excluded.state
                               when excluded.state = 'in_review'
                                and live.state in ('scheduled', 'returned', 'unroutable') then 'in_review'
                               when live.state = 'skipped' and (excluded.state <> 'scheduled'
                                                                or live.skipped_round is distinct from excluded.round)
                               then excluded.state
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
           identity     = coalesce(excluded.identity, live.identity),
           death        = coalesce(excluded.death, live.death),
           guessed_round = greatest(live.guessed_round, excluded.guessed_round),
           owner        = coalesce(excluded.owner, live.owner),
           job_type     = coalesce(excluded.job_type, live.job_type),
           priority     = coalesce(excluded.priority, live.priority),
           free         = live.free and live.round = excluded.round,
           updated_at   = clock_timestamp()
     where live.round < excluded.round
        or (live.round = excluded.round and (excluded.state <> 'skipped' or live.state in ('claimed', 'skipped')))
)
insert into transition (retry_id, round, state, actor, reason, detail)
select id, round, state, %(actor)s, reason, detail::jsonb from done;

-- name: name_messages
-- After late records: which messages these retries are about. A return that was recorded before them does not tell, and
-- if a later round has begun by now, the record itself does not change the row.
update retry as live
   set message_id = coalesce(live.message_id, late.message_id),
       owner      = coalesce(live.owner, late.owner),
       job_type   = coalesce(live.job_type, late.job_type),
       priority   = coalesce(live.priority, late.priority)
  from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(message_ids)b::text[], %(owners)b::text[], %(job_types)b::text[],
              %(priorities)b::text[]) as late (id, round, message_id, owner, job_type, priority)
 where live.id = late.id and live.round > late.round
   and ((live.message_id is null and late.message_id is not null) or (live.owner is null and late.owner is not null)
        or (live.job_type is null and late.job_type is not null)
        or (live.priority is null and late.priority is not null));

-- name: legs_sent_on
-- Those of these legs whose next leg the broker has confirmed: a message on such a leg, with the same content, is a copy.
-- Not of an open retry that cannot be rebuilt: on a broker restored from a backup this message may be the only one.
select leg.id::text, leg.round, leg.due_ms, replace(leg.content::text, '-', ''), leg.leg
  from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(due_ms)b::bigint[], %(contents)b::uuid[], %(legs)b::int[])
       as leg (id, round, due_ms, content, leg)
  join retry on retry.id = leg.id
 where retry.layover_round = leg.round and retry.layover_due = to_timestamp(leg.due_ms / 1000.0)
   and retry.layover_content = leg.content and retry.layover_leg > leg.leg
   and (retry.state not in ('scheduled', 'held', 'unroutable') or retry.round <> leg.round
        or (retry.body is not null and retry.properties is not null));

-- name: record_legs
-- Legs that the broker has confirmed: the queue that the message waits in now, and a note in the history. A retry that
-- was cancelled, or is in another round, keeps its row: its message is diverted at the gate that each leg passes. A leg
-- that arrives late, through the spool, changes nothing that a later one has written. A message that was unroutable and
-- has not passed the tap waits again.
with sent as (
    select *
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(due_ms)b::bigint[], %(contents)b::uuid[], %(legs)b::int[],
                  %(tiers)b::text[], %(at_ms)b::bigint[], %(delay_ms)b::bigint[], %(wait_ms)b::bigint[])
           as s (id, round, due_ms, content, leg, tier, at_ms, delay_ms, wait_ms)
),
moved as (
    update retry as live
       set layover_round = sent.round,
           layover_due   = to_timestamp(sent.due_ms / 1000.0),
           layover_content = sent.content,
           layover_leg   = sent.leg,
           layover_until = to_timestamp((sent.at_ms + sent.wait_ms) / 1000.0),
           tier          = sent.tier,
           delay_ms      = sent.delay_ms,
           entered_at    = to_timestamp(sent.at_ms / 1000.0),
           expected_at   = to_timestamp((sent.at_ms + sent.delay_ms) / 1000.0),
           state         = case when live.state = 'unroutable' and live.returned_round < live.round then 'scheduled'
                                else live.state end,
           updated_at    = clock_timestamp()
      from (select distinct on (id) * from sent order by id, round desc, leg desc) as sent
     where live.id = sent.id and live.round = sent.round and live.due_at = to_timestamp(sent.due_ms / 1000.0)
       and live.state in ('scheduled', 'held', 'unroutable')
       and not coalesce(live.layover_round = sent.round and live.layover_due = live.due_at
                        and live.layover_leg >= sent.leg, false)
)
insert into transition (retry_id, round, state, actor, detail)
select id, round, 'layover', %(actor)s,
       jsonb_build_object('leg', leg, 'tier', tier, 'delay_ms', delay_ms, 'wait_ms', coalesce(wait_ms, delay_ms))
  from sent
 order by id, leg;

-- name: note
-- Facts that change no state, mostly duplicates.
insert into transition (retry_id, round, state, actor, reason)
select *, %(actor)s, %(reason)s from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(notes)b::text[]) as n (id, round, note);

-- name: unroutable_rounds
-- These rounds could not be routed to their destination and arrived in the unroutable queue. If one is redriven from
-- there, the tap sees it again.
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
-- Returns that the tap has seen, with their drift. A later round may already have begun. A second sighting of a round
-- is noted as a duplicate, unless the broker marks it as redelivered; a round that was unroutable or held in between
-- counts as a new sighting. Sightings may be out of order when several taps read: only then, which is rare, is the
-- history searched for an earlier sighting.
--
-- Returns a row for each sighting that is not an ordinary one: its place in the batch, whether it repeats another one,
-- whether the round comes due with it (not if it was held, or passed the tap before), and whether a person began it.
with seen as (
    select *, to_timestamp(at_ms / 1000.0) as at,
           greatest(least(at_ms - due_ms, 2147483647), -2147483648)::int as drift_ms,
           row_number() over (partition by id, round order by at_ms) as sighting
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(queues)b::text[], %(counts)b::int[], %(due_ms)b::bigint[],
                  %(at_ms)b::bigint[], %(redelivered)b::bool[], %(held)b::bool[])
           with ordinality as s (id, round, queue, retry_count, due_ms, at_ms, redelivered, held, place)
),
judged as (
    select seen.*,
           coalesce(live.round = seen.round and live.returned_round >= seen.round, false) as passed_before,
           coalesce(live.round = seen.round and live.state = 'held', false) as was_held,
           coalesce(seen.round = live.manual_round, false)
           or (seen.held and coalesce((select bool_or(paused.released_by is not null)
                                         from paused_destination as paused
                                        where paused.destination
                                              = tarry_destination(live.queue, live.exchange, live.properties)
                                           or (paused.kind not in ('queue', 'exchange')
                                               and tarry_holds(paused.kind, paused.destination, paused.name, live.queue,
                                                               live.exchange, live.policy, live.properties))), false))
           as by_person,
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
                                  and live.state in ('claimed', 'scheduled', 'held', 'unroutable', 'cancelled', 'discarded',
                                                     'skipped')
                                 then 'returned'
                                 else live.state end,
           round          = greatest(live.round, excluded.round),
           returned_round = greatest(live.returned_round, excluded.returned_round),
           returned_at    = case when live.round <= excluded.round then excluded.returned_at else live.returned_at end,
           drift_ms       = case when live.round <= excluded.round then excluded.drift_ms else live.drift_ms end,
           updated_at     = clock_timestamp()
),
noted as (
    insert into transition (retry_id, round, state, actor, at, reason, detail)
    select id, round, case when again then 'duplicate' else 'returned' end, %(actor)s, at,
           case when again then 'it returned again' end, jsonb_build_object('drift_ms', drift_ms)
      from judged
     where not (again and redelivered)
     order by id, round, sighting
)
select place, again, not (passed_before or was_held), by_person and not passed_before
  from judged
 where again or passed_before or was_held or by_person;

-- name: not_requeued
-- Rounds that passed the tap lately and then reached no queue: each time they passed, they arrived in the unroutable
-- queue. Normally there are none, and the query reads an empty index.
with lately as materialized (
    select retry_id, round
      from transition
     where state = 'unroutable' and at > statement_timestamp() - %(lately)s::interval
)
select lately.retry_id::text, lately.round
  from lately
 cross join lateral (select count(*) filter (where state = 'unroutable') as unroutable,
                            count(*) filter (where state = 'returned')   as passed
                       from transition
                      where transition.retry_id = lately.retry_id and transition.round = lately.round) as times
 where times.unroutable >= times.passed;

-- name: succeeded
-- Successes that consumers report. A round that ended otherwise keeps its state, a later round takes precedence over an
-- earlier one's success, and nothing is written for a retry that the store does not have. Each round's success is
-- recorded once, however often it is reported; a report also proves a success that was only presumed. Returns the
-- successes that are recorded now, with the time since the first failure.
with reported as (
    select distinct on (id, round) *
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(counts)b::int[], %(at_ms)b::bigint[], %(durations_ms)b::bigint[])
           as t (id, round, retry_count, at_ms, duration_ms)
     order by id, round, at_ms
),
known as (
    select reported.*, live.state, live.queue, live.message_id, live.first_failed_at
      from reported
      join retry as live using (id)
     where reported.round < live.round
        or (reported.round = live.round and live.state in ('scheduled', 'returned', 'succeeded'))
     order by live.id
       for update of live
),
moved as (
    update retry as live
       set state = 'succeeded', presumed = false, updated_at = clock_timestamp()
      from known
     where live.id = known.id and live.round = known.round
       and (known.state in ('scheduled', 'returned') or (known.state = 'succeeded' and live.presumed))
),
ended as (
    delete from attempt_start as start
     using reported
     where start.retry_id = reported.id and start.round = reported.round
),
new as materialized (
    select *
      from known
     where not exists (select from transition as before
                        where before.retry_id = known.id and before.round = known.round
                          and before.state = 'succeeded' and before.actor = 'reported')
),
noted as (
    insert into transition (retry_id, round, state, actor, reason, detail)
    select id, round, 'succeeded', 'reported', 'reported by its consumer',
           jsonb_build_object('attempt', retry_count, 'duration_ms', duration_ms, 'at_ms', at_ms)
      from new
)
select id::text, round, queue, message_id, retry_count,
       greatest(0, at_ms - (extract(epoch from first_failed_at) * 1000)::bigint)
  from new;

-- name: skipped_when_due
-- Rounds that were due and are not wanted any more: the consumer of a check queue, which may be a router, has reported it
-- and then acknowledged the message. A round that ended otherwise keeps its state, a later round takes precedence, and
-- nothing is written for a retry that the store does not have. A report that arrives twice changes nothing. The round is
-- stored too, so that a record of its scheduling that arrives late, through the spool, does not open it again.
--
-- Returns the rounds that are skipped now, and whether they come due with it: a held one was due before.
with reported as (
    select distinct on (id, round) *
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(at_ms)b::bigint[], %(reasons)b::text[]) as t (id, round, at_ms, reason)
     order by id, round, at_ms
),
known as (
    select reported.*, live.queue, live.message_id, live.policy, live.error_class, live.fingerprint, live.owner,
           live.state <> 'held' and live.returned_round < live.round as comes_due
      from reported
      join retry as live using (id)
     where live.round = reported.round and live.state in ('claimed', 'scheduled', 'held', 'unroutable')
     order by live.id
       for update of live
),
moved as (
    update retry as live
       set state = 'skipped', skipped_round = known.round, updated_at = clock_timestamp()
      from known
     where live.id = known.id
),
noted as (
    insert into transition (retry_id, round, state, actor, reason, detail)
    select id, round, 'skipped', 'reported', reason,
           jsonb_build_object('at_ms', at_ms) || tarry_about(policy, error_class, fingerprint, null, owner)
      from known
)
select id::text, round, queue, message_id, policy, error_class, reason, comes_due from known;

-- name: cancelled
-- These rounds were diverted at a gate. The diversion records it for its requester, whose name goes into the history. A
-- retry-now does not end the retry here: its next round begins. If a round is already over and no diversion of it was
-- requested, the diverted message was a surplus copy: a duplicate.
--
-- Returns the rounds that are diverted now, by their place in the batch, and whether they come due with it: a held one
-- was due before.
with seen as (
    select distinct on (id) *, to_timestamp(at_ms / 1000.0) as at
      from unnest(%(ids)b::uuid[], %(rounds)b::int[], %(at_ms)b::bigint[], %(redelivered)b::bool[])
           with ordinality as s (id, round, at_ms, redelivered, place)
     order by id, round desc
),
first as (
    select seen.id
      from seen
      join diversion on diversion.retry_id = seen.id and diversion.round = seen.round
     where diversion.unbound_at is null and diversion.diverted_at is null
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
),
noted as (
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
                     or (live.round > seen.round and asked.id is not null)))
)
select seen.place, not exists (select from transition
                                where retry_id = seen.id and transition.round = seen.round and state = 'held')
  from seen
 where seen.id in (select id from first union select id from moved);

-- name: ping
-- Whether the database can be written to: a read would succeed on one that is full, read-only or without our tables.
update tarry_probe set at = clock_timestamp() returning (extract(epoch from clock_timestamp()) * 1000)::bigint;
