-- name: given_up_errors
-- The errors that are given up, with what is known about each; those of some queues or all.
select g.queue, g.policy, g.fingerprint, e.error_type, e.example, g.since, g.reason, g.succeeded, g.failed, g.evidence_since
  from given_up_error as g
  left join statistic_error as e using (queue, fingerprint)
 where (%(queue)s::text is null or g.queue = %(queue)s)
   and (%(fingerprint)s::text is null or g.fingerprint = %(fingerprint)s)
 order by g.since desc, g.queue, g.policy, g.fingerprint
 limit %(limit)s;

-- name: give_up_error
-- An error is given up, unless an operator has just decided about it.
insert into given_up_error (queue, policy, fingerprint, reason, succeeded, failed, evidence_since)
select %(queue)s, %(policy)s, %(fingerprint)s, %(reason)s, %(succeeded)s, %(failed)s, to_timestamp(%(since_ms)s / 1000.0)
 where not exists (select from error_choice
                    where queue = %(queue)s and fingerprint = %(fingerprint)s and (always or at > %(read_at)s))
    on conflict do nothing;

-- name: retry_given_up_error
-- An error is retried again, under this policy or under all.
delete from given_up_error
 where queue = %(queue)s and fingerprint = %(fingerprint)s and (%(policy)s::text is null or policy = %(policy)s)
returning policy;

-- name: error_choices
-- What operators have decided about errors, of one queue or all.
select c.queue, c.fingerprint, e.error_type, e.example, c.always, c.actor, c.reason, c.at
  from error_choice as c
  left join statistic_error as e using (queue, fingerprint)
 where %(queue)s::text is null or c.queue = %(queue)s
 order by c.at desc, c.queue, c.fingerprint
 limit %(limit)s;

-- name: set_error_choice
-- An operator retries an error again, or for ever.
with chosen as (
    insert into error_choice (queue, fingerprint, always, actor, reason)
    values (%(queue)s, %(fingerprint)s, %(always)s, %(actor)s, %(reason)s)
        on conflict (queue, fingerprint) do update
       set always = excluded.always, actor = excluded.actor, reason = excluded.reason, at = clock_timestamp()
    returning *
)
select c.queue, c.fingerprint, e.error_type, e.example, c.always, c.actor, c.reason, c.at
  from chosen as c
  left join statistic_error as e using (queue, fingerprint);

-- name: unset_error_choice
-- It is judged by all of its history again; nothing if nobody had decided about it.
with gone as (
    delete from error_choice where queue = %(queue)s and fingerprint = %(fingerprint)s
    returning *
)
select c.queue, c.fingerprint, e.error_type, e.example, c.always, c.actor, c.reason, c.at
  from gone as c
  left join statistic_error as e using (queue, fingerprint);

-- name: forget_error_choices
-- Those that no policy looks back to any more.
delete from error_choice where not always and at < clock_timestamp() - %(older_than)s::interval;

-- name: errors_of_queue
-- The errors of a queue with a fingerprint from `low` to `high`, with the type of each.
select fingerprint, max(error_type)
  from (select fingerprint, error_type
          from statistic_error
         where queue = %(queue)s and fingerprint between %(low)s and %(high)s
         union all
        select fingerprint, null
          from given_up_error
         where queue = %(queue)s and fingerprint between %(low)s and %(high)s
         union all
        select fingerprint, null
          from error_choice
         where queue = %(queue)s and fingerprint between %(low)s and %(high)s
         union all
        select fingerprint, error_type
          from retry
         where fingerprint between %(low)s and %(high)s and queue = %(queue)s) as known (fingerprint, error_type)
 group by fingerprint
 order by fingerprint
 limit %(limit)s;
