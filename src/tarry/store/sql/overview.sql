-- name: due_by_minute
-- How many waiting retries are due in each minute of the next hour; minutes without any are left out.
select floor(extract(epoch from due_at - statement_timestamp()) / 60)::int, count(*)::int
  from retry
 where state = 'scheduled'
   and due_at >= statement_timestamp() and due_at < statement_timestamp() + interval '1 hour'
   and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
 group by 1;

-- name: reviewed_by_minute
-- How many messages that are in review came there in each minute of the last hour, the latest minute being 0.
select floor(extract(epoch from statement_timestamp() - updated_at) / 60)::int, count(*)::int
  from retry
 where state = 'in_review'
   and updated_at > statement_timestamp() - interval '1 hour' and updated_at <= statement_timestamp()
   and (%(scope)s::text[] is null or queue like any(%(scope)s::text[]))
 group by 1;

-- name: recent_drift
-- How late the returns of the last five minutes were; null if there were none. Those that have failed again are not
-- counted: no index has them.
with returned as (
    select drift_ms, queue
      from retry
     where state = 'returned' and returned_at > statement_timestamp() - interval '5 minutes'
     union all
    select drift_ms, queue
      from retry
     where state in ('succeeded', 'cancelled', 'discarded') and state = 'succeeded'
       and updated_at > statement_timestamp() - interval '5 minutes'
       and returned_at > statement_timestamp() - interval '5 minutes'
)
select count(*)::int, percentile_disc(0.5) within group (order by drift_ms),
       percentile_disc(0.99) within group (order by drift_ms), max(drift_ms)
  from returned
 where (%(scope)s::text[] is null or queue like any(%(scope)s::text[]));

-- name: open_by_queue
-- How many retries are open in each state, by the queue in which they failed, and when the first of them failed. One
-- index covers it.
select state, queue, count(*), min(first_failed_at)
  from retry
 where state in ('scheduled', 'held', 'in_review', 'unroutable')
   and (%(queue)s::text is null or queue = %(queue)s)
 group by state, queue;
