-- name: webhooks
-- What is known about webhooks.
select name, last_success_at, last_failure_at, last_error, disabled_at, disabled_reason from webhook;

-- name: webhook_result
-- Record the latest deliveries of a webhook.
insert into webhook as known (name, last_success_at, last_failure_at, last_error)
values (%(name)s, %(success_at)s, %(failure_at)s, %(error)s)
    on conflict (name) do update
   set last_success_at = greatest(known.last_success_at, excluded.last_success_at),
       last_failure_at = greatest(known.last_failure_at, excluded.last_failure_at),
       last_error      = coalesce(excluded.last_error, known.last_error);

-- name: disable_webhook
-- Its endpoint is gone.
insert into webhook as known (name, last_failure_at, last_error, disabled_at, disabled_reason)
values (%(name)s, clock_timestamp(), %(reason)s, clock_timestamp(), %(reason)s)
    on conflict (name) do update
   set last_failure_at = excluded.last_failure_at, last_error = excluded.last_error,
       disabled_at     = coalesce(known.disabled_at, excluded.disabled_at),
       disabled_reason = coalesce(known.disabled_reason, excluded.disabled_reason);

-- name: enable_webhook
-- Its endpoint is back.
update webhook set disabled_at = null, disabled_reason = null where name = %(name)s;

-- name: webhook_disabled
-- Whether nothing is delivered to it.
select disabled_reason from webhook where name = %(name)s and disabled_at is not null;

-- name: webhook_retries
-- Deliveries that wait for another attempt, and those in review, by queue.
select queue,
       count(*) filter (where state in ('claimed', 'scheduled', 'held', 'unroutable')),
       count(*) filter (where state = 'in_review')
  from retry
 where queue = any(%(queues)s) and state in ('claimed', 'scheduled', 'held', 'unroutable', 'in_review')
 group by queue;
