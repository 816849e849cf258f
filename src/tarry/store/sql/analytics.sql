-- name: statistics
-- Counts of the hours or days from `since` up to `until`, by these dimensions; null where a dimension is not asked for.
-- `other` marks what has no row of its own. `kind` says which counts: those by error or by owner, or else by queue.
select case when %(by_time)s then starts end,
       case when %(by_queue)s then queue end,
       case when %(by_policy)s then policy end,
       case when %(by_error)s or %(by_owner)s then value end,
       case when %(by_attempt)s then attempt end,
       case when %(by_error)s or %(by_owner)s then other
            when %(by_queue)s then other and queue = '' else false end,
       sum(scheduled)::bigint, sum(returned)::bigint, sum(succeeded)::bigint, sum(presumed)::bigint, sum(failed)::bigint,
       sum(exhausted)::bigint, sum(reviewed)::bigint, sum(skipped)::bigint, sum(success_ms)::bigint,
       sum(drift_ms)::bigint, tarry_sum_bins(success_bins), tarry_sum_bins(drift_bins)
  from statistic
 where span = %(span)s and kind = %(kind)s and starts >= %(since)s and starts < %(until)s
   and (%(queue_like)s::text is null or queue like %(queue_like)s)
   and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
   and (%(policy)s::text is null or policy = %(policy)s)
   and (%(value)s::text is null
        or (not other and (value = %(value)s or (%(is_prefix)s and %(value)s <> '' and starts_with(value, %(value)s)))))
   and (%(attempt)s::int is null or attempt = %(attempt)s)
 group by 1, 2, 3, 4, 5, 6
having sum(scheduled + returned + succeeded + failed + exhausted + reviewed + skipped) > 0
 order by 1, 2, 3, 4, 5, 6;

-- name: statistic_errors
-- What these fingerprints stand for, as far as these queues have them; one example each.
select distinct on (fingerprint) fingerprint, error_class, error_type, example
  from statistic_error
 where fingerprint = any(%(fingerprints)s)
   and (%(queue_like)s::text is null or queue like %(queue_like)s)
   and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
 order by fingerprint, seen_at desc;
