-- name: statistics
-- Counts of the hours or days from `since` up to `until`, by these dimensions; null where a dimension is not asked for.
-- `other` marks what has no row of its own. `kind` says which counts: those by error or by owner, or else by queue. `costs`
-- are the costs of policies that are not 1. Values are numbered by how much they count, the largest first; with `most`,
-- only so many are returned.
with counted as (
    select case when %(by_time)s then starts end as starts,
           case when %(by_queue)s then queue end as queue,
           case when %(by_policy)s then policy end as policy,
           case when %(by_error)s or %(by_owner)s then value end as value,
           case when %(by_attempt)s then attempt end as attempt,
           case when %(by_error)s or %(by_owner)s then other
                when %(by_queue)s then other and queue = '' else false end as other,
           sum(scheduled)::bigint as scheduled, sum(returned)::bigint as returned, sum(succeeded)::bigint as succeeded,
           sum(presumed)::bigint as presumed, sum(failed)::bigint as failed, sum(exhausted)::bigint as exhausted,
           sum(reviewed)::bigint as reviewed, sum(skipped)::bigint as skipped, sum(success_ms)::bigint as success_ms,
           sum(drift_ms)::bigint as drift_ms, tarry_sum_bins(success_bins) as success_bins,
           tarry_sum_bins(drift_bins) as drift_bins,
           sum(returned * coalesce((%(costs)s::jsonb ->> policy)::bigint, 1))::bigint as cost
      from statistic
     where span = %(span)s and kind = %(kind)s and starts >= %(since)s and starts < %(until)s
       and (%(queue_like)s::text is null or queue like %(queue_like)s)
       and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
       and (%(policy)s::text is null or policy = %(policy)s)
       and (%(value)s::text is null
            or (not other
                and (value = %(value)s or (%(is_prefix)s and %(value)s <> '' and starts_with(value, %(value)s)))))
       and (%(attempt)s::int is null or attempt = %(attempt)s)
     group by 1, 2, 3, 4, 5, 6
    having sum(scheduled + returned + succeeded + failed + exhausted + reviewed + skipped) > 0
),
sized as (
    select counted.*,
           sum(scheduled + returned + exhausted + reviewed + skipped)
               over (partition by queue, policy, value, attempt, other) as size
      from counted
),
numbered as (
    select sized.*, dense_rank() over (order by size desc, queue, policy, value, attempt, other) as place from sized
)
select starts, queue, policy, value, attempt, other, scheduled, returned, succeeded, presumed, failed, exhausted, reviewed,
       skipped, success_ms, drift_ms, success_bins, drift_bins, cost, place
  from numbered
 where %(most)s::int is null or place <= %(most)s
 order by 1, 2, 3, 4, 5, 6;

-- name: statistic_errors
-- What these fingerprints stand for, as far as these queues have them; one example each.
select distinct on (fingerprint) fingerprint, error_class, error_type, example
  from statistic_error
 where fingerprint = any(%(fingerprints)s)
   and (%(queue_like)s::text is null or queue like %(queue_like)s)
   and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
 order by fingerprint, seen_at desc;

-- name: configure_statistics
-- Settings for the connection that counts. A transaction that waits for a lock, or takes long, must not hold up others:
-- it is tried again. Postgres cannot know the sizes of the parts of a large statement, and a nested loop or a merge join
-- between them can take hours: only hash joins are left. Lookups by id are lateral joins of subqueries with a limit or an
-- offset, for which it has no other way than an index, so they do not become scans of the whole history.
select set_config('lock_timeout', '2s', false),
       set_config('statement_timeout', '120s', false),
       set_config('synchronous_commit', 'off', false),
       set_config('work_mem', '64MB', false),
       set_config('plan_cache_mode', 'force_custom_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('enable_nestloop', 'off', false),
       set_config('enable_mergejoin', 'off', false),
       set_config('enable_sort', 'off', false),
       set_config('random_page_cost', '1.1', false),
       set_config('jit', 'off', false);

-- name: statistic_position
-- Which steps have been counted, the cluster, and every transaction before which is over now.
select cluster.system_identifier, position.system_identifier, position.transition_xid::text, position.last_id,
       position.since_id, position.began_at, position.before_id, position.before_day, position.before_retry,
       position.oldest_day, position.counted_until,
       pg_snapshot_xmin(pg_current_snapshot())::text, pg_snapshot_xmax(pg_current_snapshot())::text, clock_timestamp()
  from pg_control_system() as cluster
  left join statistic_position as position on true;

-- name: begin_statistics
-- The first pass: steps from now on are counted by transaction, and those until now day by day. The history before is as
-- old as its oldest partition, or the oldest step in the default one.
with cut as materialized (select id, (xid::text::numeric - 1)::text::xid8 as xid, at from tarry_event_cut()),
oldest as (
    select least((select min(to_date(right(relname, 8), 'YYYYMMDD'))
                    from pg_inherits
                    join pg_class on pg_class.oid = inhrelid
                   where inhparent = 'transition'::regclass and relname ~ '^transition_[0-9]{8}$'),
                 (select min(at at time zone 'UTC')::date from transition_default)) as day
)
insert into statistic_position (system_identifier, transition_xid, last_id, since_id, before_id, before_day, oldest_day)
select cluster.system_identifier, cut.xid, cut.id, cut.id, cut.id, (cut.at at time zone 'UTC')::date + 1, oldest.day
  from cut, oldest, pg_control_system() as cluster;

-- name: statistic_new_steps
-- The retries of the next steps, whole transactions, each with the first and the last of their rounds.
with step as materialized (
    select xid, id, retry_id, round, state, at
      from transition
     where xid > %(after)s::text::xid8 and xid < %(bound)s::text::xid8 and id > %(since_id)s
     order by xid
     fetch first %(limit)s rows with ties
),
touched as (
    select retry_id, min(round) as low, max(round) as high
      from step
     where state in ('scheduled', 'returned', 'succeeded', 'in_review', 'skipped')
     group by retry_id
)
select count(*), coalesce(max(xid::text::numeric), 0)::text, coalesce(max(id), 0), max(at),
       (select coalesce(array_agg(retry_id), '{}') from touched), (select coalesce(array_agg(low), '{}') from touched),
       (select coalesce(array_agg(high), '{}') from touched),
       -- The first step that has to wait, until every transaction before its own is over.
       (select at from transition where xid >= %(bound)s::text::xid8 and id > %(since_id)s order by xid limit 1)
  from step;

-- name: statistic_steps_before
-- The next retries that have steps of this day among those of the history before.
select coalesce(array_agg(retry_id), '{}')
  from (select distinct retry_id
          from transition
         where at >= %(since)s and at < %(until)s and id <= %(before_id)s
           and (%(after)s::uuid is null or retry_id > %(after)s)
         order by retry_id
         limit %(limit)s) as next;

-- name: statistic_restored_steps
-- After a restore: the retries of the steps before the cut that are not counted.
select coalesce(array_agg(retry_id), '{}')
  from (select distinct retry_id
          from transition
         where id <= %(cut)s and id > %(since_id)s and not (xid <= %(after)s::text::xid8 and id <= %(last_id)s)) as found;

-- name: count_rounds
-- Counts these retries anew, from their steps that are counted already and from those and the new ones, and adds the
-- difference. So a step that changes what an earlier one counted as corrects it: a failure after a presumed success, a
-- record that comes after its return. `low` and `high` are the rounds that have new steps; what a round counts depends
-- on its own steps and on those of the rounds before and after it. With `since` and `until`, only what happened then.
-- Names are compared byte by byte, as in the table: their order does not matter, and its rules take longer.
with touched as materialized (
    select given.*, live.*,
           -- Older partitions need not be read. A time in the future is that of a wrong clock.
           case when live.first_failed_at <= statement_timestamp() then live.first_failed_at - interval '1 day'
                else '-infinity' end as since
      from unnest(%(ids)s::uuid[], %(lows)s::int[], %(highs)s::int[]) as given (id, low, high)
      left join lateral (select queue collate "C" as queue, first_failed_at, fingerprint collate "C" as fingerprint,
                                error_class, error_type, error_reason
                           from retry
                          where retry.id = given.id
                          limit 1) as live on true
),
step as materialized (
    select touched.id, coalesce(touched.queue, '') collate "C" as queue, touched.first_failed_at, step.round, step.state, step.at,
           step.state = 'scheduled' and step.detail ? 'due_ms' as begins, step.actor = 'reported' as reported,
           step.state = 'in_review' and step.reason like 'exhausted:%%' as exhausted,
           case when step.state <> 'returned' then step.detail ->> 'policy' end collate "C" as policy,
           case when step.state <> 'returned' then step.detail ->> 'fingerprint' end collate "C" as fingerprint,
           case when step.state <> 'returned' then step.detail ->> 'owner' end collate "C" as owner,
           case when step.state = 'scheduled' then (step.detail ->> 'attempt')::int end as attempt,
           case when step.state = 'returned' then (step.detail ->> 'drift_ms')::bigint
                when step.state = 'succeeded' then (step.detail ->> 'at_ms')::bigint end as ms,
           step.id <= %(counted_id)s
           or (step.xid <= %(counted_xid)s::text::xid8 and step.id <= %(counted_last)s) as is_counted
      from touched
     cross join lateral (select round, state, at, id, xid, actor, reason, detail
                           from transition
                          where retry_id = touched.id and round >= touched.low - 1 and round <= touched.high + 1
                            and at >= touched.since
                            and state in ('scheduled', 'returned', 'succeeded', 'in_review', 'skipped')
                            and (id <= %(until_id)s or xid <= %(until_xid)s::text::xid8)
                         offset 0) as step
),
round as (
    select sign, id, round, queue, min(first_failed_at) as first_failed_at,
           min(at) filter (where begins) as scheduled_at,
           min(policy) filter (where begins) as policy,
           min(fingerprint) filter (where begins) as fingerprint,
           min(owner) filter (where begins) as owner,
           min(attempt) filter (where begins) as attempt,
           min(at) filter (where state = 'returned') as returned_at,
           min(ms) filter (where state = 'returned') as drift_ms,
           min(at) filter (where state = 'succeeded' and reported) as reported_at,
           min(ms) filter (where state = 'succeeded' and reported) as reported_ms,
           min(at) filter (where state = 'succeeded' and not reported) as presumed_at,
           min(at) filter (where state = 'in_review') as reviewed_at,
           bool_or(exhausted) as exhausted,
           min(at) filter (where state = 'skipped') as skipped_at,
           min(policy) filter (where state in ('in_review', 'skipped')) as end_policy,
           min(fingerprint) filter (where state in ('in_review', 'skipped')) as end_fingerprint,
           min(owner) filter (where state in ('in_review', 'skipped')) as end_owner
      from step
      join (values (-1), (1)) as side (sign) on sign = 1 or is_counted
     group by sign, id, round, queue
),
linked as (
    select round.*,
           case when lead(round) over way = round + 1
                then lead(least(scheduled_at, reviewed_at, skipped_at)) over way end as failed_at,
           case when lag(round) over way = round - 1 then lag(attempt) over way end as attempt_before
      from round
    window way as (partition by sign, id order by round)
),
fact as materialized (
    select sign, queue, date_trunc('hour', at, 'UTC') as hour, what, coalesce(fact.policy, '') as policy,
           coalesce(fact.fingerprint, '') as fingerprint, coalesce(fact.owner, '') as owner,
           least(coalesce(fact.attempt, 0), %(most_attempts)s) as attempt, ms,
           case when what in ('succeeded', 'presumed') then width_bucket(ms, %(success_bounds)s::bigint[])
                when what = 'returned' then width_bucket(ms, %(drift_bounds)s::bigint[]) end as bin
      from linked
     cross join lateral (
         select 'scheduled' as what, scheduled_at as at, policy, fingerprint, owner, attempt, null::bigint as ms
          where scheduled_at is not null
          union all
         select 'returned', returned_at, policy, fingerprint, owner, attempt, drift_ms
          where returned_at is not null
          union all
         select case when failed_at is not null then 'failed' when reported_at is not null then 'succeeded'
                     else 'presumed' end,
                coalesce(failed_at, reported_at, presumed_at), policy, fingerprint, owner, attempt,
                case when failed_at is null
                     then greatest(0, coalesce(reported_ms, (extract(epoch from returned_at) * 1000)::bigint)
                                      - (extract(epoch from first_failed_at) * 1000)::bigint) end
          where returned_at is not null and coalesce(failed_at, reported_at, presumed_at) is not null
          union all
         select case when exhausted then 'exhausted' else 'reviewed' end, reviewed_at, coalesce(end_policy, policy),
                coalesce(end_fingerprint, fingerprint), coalesce(end_owner, owner), coalesce(attempt_before, 0), null
          where reviewed_at is not null
          union all
         select 'skipped', skipped_at, coalesce(end_policy, policy), coalesce(end_fingerprint, fingerprint),
                coalesce(end_owner, owner), coalesce(attempt, attempt_before, 0), null
          where skipped_at is not null) as fact (what, at, policy, fingerprint, owner, attempt, ms)
     where (%(since)s::timestamptz is null or (fact.at >= %(since)s and fact.at < %(until)s))
),
hourly as materialized (
    select hour, case when grouping(fingerprint) = 0 then 'error' when grouping(owner) = 0 then 'owner' else 'queue' end as kind,
           queue, policy, coalesce(fingerprint, owner, '') as value, coalesce(attempt, 0) as attempt,
           coalesce(sum(sign) filter (where what = 'scheduled'), 0) as scheduled,
           coalesce(sum(sign) filter (where what = 'returned'), 0) as returned,
           coalesce(sum(sign) filter (where what in ('succeeded', 'presumed')), 0) as succeeded,
           coalesce(sum(sign) filter (where what = 'presumed'), 0) as presumed,
           coalesce(sum(sign) filter (where what = 'failed'), 0) as failed,
           coalesce(sum(sign) filter (where what = 'exhausted'), 0) as exhausted,
           coalesce(sum(sign) filter (where what = 'reviewed'), 0) as reviewed,
           coalesce(sum(sign) filter (where what = 'skipped'), 0) as skipped,
           coalesce(sum(sign * ms) filter (where what in ('succeeded', 'presumed')), 0)::bigint as success_ms,
           coalesce(sum(sign * ms) filter (where what = 'returned'), 0)::bigint as drift_ms,
           sum(greatest(sign, 0)) as size
      from fact
     group by grouping sets ((hour, queue, policy, attempt), (hour, queue, policy, fingerprint, attempt),
                             (hour, queue, policy, owner))
),
total as materialized (
    select span, date_trunc(span, hour, 'UTC') as starts, kind, queue, policy, value, attempt,
           sum(scheduled)::int as scheduled, sum(returned)::int as returned, sum(succeeded)::int as succeeded,
           sum(presumed)::int as presumed, sum(failed)::int as failed, sum(exhausted)::int as exhausted,
           sum(reviewed)::int as reviewed, sum(skipped)::int as skipped, sum(success_ms)::bigint as success_ms,
           sum(drift_ms)::bigint as drift_ms, sum(size) as size
      from hourly
     cross join (values ('hour'), ('day')) as spans (span)
     where scheduled <> 0 or returned <> 0 or succeeded <> 0 or presumed <> 0 or failed <> 0 or exhausted <> 0
        or reviewed <> 0 or skipped <> 0 or success_ms <> 0 or drift_ms <> 0
     group by 1, 2, 3, 4, 5, 6, 7
),
-- Which have rows of their own: those that have them already, and the largest of the new ones while there is room.
series as (
    select span, starts, kind, queue, policy, value, sum(size) as size,
           (select true
              from statistic as known
             where known.span = total.span and known.starts = total.starts and known.kind = total.kind
               and known.queue = total.queue and known.policy = total.policy and known.value = total.value
               and not known.other
             limit 1) as is_known
      from total
     group by 1, 2, 3, 4, 5, 6
),
full_as as materialized (
    select span, starts, kind,
           (select count(*)
              from (select distinct queue, policy, value
                      from statistic as known
                     where known.span = bucket.span and known.starts = bucket.starts and known.kind = bucket.kind
                       and not known.other) as one) as number
      from (select distinct span, starts, kind from series where is_known is null) as bucket
),
named as materialized (
    select series.*,
           is_known is not null
           or full_as.number + row_number() over (partition by span, starts, kind, is_known
                                                      order by size desc nulls last, queue, policy, value)
              <= %(most_series)s as is_named
      from series
      left join full_as using (span, starts, kind)
),
placed as materialized (
    select total.*, named.is_named, coalesce(pair.is_named, false) as has_queue
      from total
      join named using (span, starts, kind, queue, policy, value)
      left join named as pair
        on pair.span = total.span and pair.starts = total.starts and pair.kind = 'queue' and pair.queue = total.queue
       and pair.policy = total.policy
),
bins as (
    select span, date_trunc(span, hour, 'UTC') as starts, queue, policy, attempt, what = 'returned' as is_drift, bin,
           sum(sign)::int as number
      from fact
     cross join (values ('hour'), ('day')) as spans (span)
     where bin is not null
     group by 1, 2, 3, 4, 5, 6, 7
    having sum(sign) <> 0
),
histogram as materialized (
    select span, starts, queue, policy, attempt,
           (select array_agg(coalesce((by_bin ->> place::text)::int, 0) order by place)
              from generate_series(0, cardinality(%(success_bounds)s::bigint[])) as place
             where by_bin is not null) as success_bins,
           (select array_agg(coalesce((by_drift ->> place::text)::int, 0) order by place)
              from generate_series(0, cardinality(%(drift_bounds)s::bigint[])) as place
             where by_drift is not null) as drift_bins
      from (select span, starts, queue, policy, attempt,
                   jsonb_object_agg(bin, number) filter (where not is_drift) as by_bin,
                   jsonb_object_agg(bin, number) filter (where is_drift) as by_drift
              from bins
             group by 1, 2, 3, 4, 5) as gathered
),
learned as (
    insert into statistic_error as known (queue, fingerprint, error_class, error_type, example)
    select distinct on (touched.queue, touched.fingerprint) touched.queue, touched.fingerprint, error_class, error_type,
           left(error_reason, 300)
      from touched
      join (select distinct queue, value from named where kind = 'error' and is_named) as error
        on error.queue = touched.queue and error.value = touched.fingerprint
     order by touched.queue, touched.fingerprint, touched.id
        on conflict (queue, fingerprint) do update
       set seen_at = excluded.seen_at
     where known.seen_at < excluded.seen_at - interval '1 day'
),
added as (
    insert into statistic as s (span, starts, kind, queue, policy, value, other, attempt, scheduled, returned, succeeded,
                                presumed, failed, exhausted, reviewed, skipped, success_ms, drift_ms, success_bins,
                                drift_bins)
    select span, starts, kind, case when is_named or has_queue then queue else '' end, policy,
           case when is_named then value else '' end, not is_named, attempt, sum(scheduled), sum(returned),
           sum(succeeded), sum(presumed), sum(failed), sum(exhausted), sum(reviewed), sum(skipped), sum(success_ms),
           sum(drift_ms), tarry_sum_bins(success_bins), tarry_sum_bins(drift_bins)
      from placed
      left join (select 'queue' as kind, histogram.* from histogram) as histogram
     using (span, starts, kind, queue, policy, attempt)
     group by 1, 2, 3, 4, 5, 6, 7, 8
        on conflict (span, starts, kind, queue, policy, value, other, attempt) do update
       set scheduled  = s.scheduled + excluded.scheduled,
           returned   = s.returned + excluded.returned,
           succeeded  = s.succeeded + excluded.succeeded,
           presumed   = s.presumed + excluded.presumed,
           failed     = s.failed + excluded.failed,
           exhausted  = s.exhausted + excluded.exhausted,
           reviewed   = s.reviewed + excluded.reviewed,
           skipped    = s.skipped + excluded.skipped,
           success_ms = s.success_ms + excluded.success_ms,
           drift_ms   = s.drift_ms + excluded.drift_ms,
           success_bins = coalesce(tarry_add_bins(s.success_bins, excluded.success_bins), s.success_bins,
                                   excluded.success_bins),
           drift_bins   = coalesce(tarry_add_bins(s.drift_bins, excluded.drift_bins), s.drift_bins,
                                   excluded.drift_bins)
)
select count(*) from total;

-- name: save_statistic_position
-- These steps are counted now. Changes nothing if another process has counted since the position was read.
update statistic_position
   set system_identifier = (select system_identifier from pg_control_system()),
       transition_xid = %(transition_xid)s::text::xid8,
       last_id        = %(last_id)s,
       since_id       = %(since_id)s,
       before_day     = %(before_day)s,
       before_retry   = %(before_retry)s,
       counted_until  = %(counted_until)s,
       updated_at     = clock_timestamp()
 where transition_xid = %(was_xid)s::text::xid8 and since_id = %(was_since)s
   and before_day is not distinct from %(was_day)s and before_retry is not distinct from %(was_retry)s;

-- name: prune_statistics
-- Statistics of hours or days that are over for so long, in slices.
delete from statistic
 where ctid in (select ctid from statistic
                 where span = %(span)s and starts < statement_timestamp() - %(older_than)s::interval
                 limit %(limit)s);

-- name: prune_statistic_errors
-- What fingerprints stand for that have not been seen for so long, in slices.
delete from statistic_error
 where ctid in (select ctid from statistic_error where seen_at < statement_timestamp() - %(older_than)s::interval
                 limit %(limit)s);
