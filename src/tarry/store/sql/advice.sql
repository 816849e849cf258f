-- name: replay_count
-- How many retries first failed in this time.
select count(*) from retry where first_failed_at >= %(since)s and first_failed_at < %(until)s;

-- name: replay_messages
-- Retries whose id is in this range and that first failed in this time, each with its steps: round, state, milliseconds,
-- reason, detail.
select retry.id::text, queue, priority, job_type, owner, max_retries, error_type, error_reason, fingerprint,
       (extract(epoch from first_failed_at) * 1000)::bigint, steps.found
  from retry
 cross join lateral (select jsonb_agg(jsonb_build_array(round, state, (extract(epoch from at) * 1000)::bigint, reason,
                                                        coalesce(detail, '{}')) order by id) as found
                       from transition
                      where retry_id = retry.id and at >= %(since)s::timestamptz - interval '1 hour'
                        and state in ('scheduled', 'returned', 'succeeded', 'in_review', 'skipped', 'cancelled', 'discarded',
                                      'recovered', 'stuck')) as steps
 where retry.id >= %(low)s and retry.id <= %(high)s and first_failed_at >= %(since)s and first_failed_at < %(until)s
   and steps.found is not null;

-- name: replay_errors
-- What these fingerprints stand for, by queue, as far as it is known.
select queue, fingerprint, error_type, example
  from statistic_error
 where fingerprint = any(%(fingerprints)s::text[]);
