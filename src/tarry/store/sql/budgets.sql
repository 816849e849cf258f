-- name: charge
-- Charges a batch of retries of one policy to its budgets: see the function. The statement waits for the disk.
select retry_id::text, round, outcome, due, full_one, most
  from tarry_charge(%(ids)b, %(rounds)b, %(owners)b, %(queues)b, %(slots)b, %(due_ms)b, %(latest_ms)b, %(draws)b,
                    %(policy)s, %(budgets)b, %(pers)b, %(everys)b, %(limits)b, %(amounts)b, %(overs)b,
                    %(opens_ms)b, %(spreads_ms)b, %(starts_ms)b, %(ends_ms)b, %(is_all)s, %(now_ms)b);

-- name: owner_caps
-- The most retries of owners that operators have limited.
select owner, nullif(policy, ''), max_retries from owner_limit where max_retries is not null;

-- name: owner_caps_version
-- Differs if they do. There may be a hundred thousand, which every router would otherwise read once a second.
select count(*), sum(hashtextextended(owner || E'\n' || policy, max_retries)) from owner_limit where max_retries is not null;

-- name: set_owner_limit
-- Sets the values that are given, and keeps the others.
insert into owner_limit as live (owner, policy, hourly, daily, monthly, max_retries, actor, reason)
values (%(owner)s, coalesce(%(policy)s, ''), %(hourly)s, %(daily)s, %(monthly)s, %(max_retries)s, %(actor)s, %(reason)s)
    on conflict (owner, policy) do update
   set hourly      = coalesce(excluded.hourly, live.hourly),
       daily       = coalesce(excluded.daily, live.daily),
       monthly     = coalesce(excluded.monthly, live.monthly),
       max_retries = coalesce(excluded.max_retries, live.max_retries),
       actor       = excluded.actor,
       reason      = excluded.reason,
       at          = clock_timestamp()
returning owner, nullif(policy, ''), hourly, daily, monthly, max_retries, actor, reason, at;

-- name: unset_owner_limit
-- Removes an exception; nothing if there was none.
delete from owner_limit
 where owner = %(owner)s and policy = coalesce(%(policy)s, '')
returning owner, nullif(policy, ''), hourly, daily, monthly, max_retries, actor, reason, at;

-- name: owner_limits
-- Exceptions, those of one owner or all.
select owner, nullif(policy, ''), hourly, daily, monthly, max_retries, actor, reason, at
  from owner_limit
 where %(owner)s::text is null or owner = %(owner)s
 order by owner, policy
 limit %(limit)s;

-- name: budget_uses
-- What is used of some budgets in their current period and in the next one, the most used first.
with current as (
    select *
      from unnest(%(budgets)s::text[], %(policies)s::text[], %(owners)s::boolean[], %(everys)s::text[],
                  %(limits)s::bigint[], %(starts_ms)s::bigint[], %(next_ms)s::bigint[])
           as c (budget, policy, per_owner, every, most, starts_ms, next_ms)
),
used as (
    select current.*, u.subject,
           sum(u.used) filter (where u.starts = to_timestamp(current.starts_ms / 1000.0)) as now,
           sum(u.used) filter (where u.starts = to_timestamp(current.next_ms / 1000.0)) as next,
           sum(u.used) filter (where u.starts >= to_timestamp(current.next_ms / 1000.0)) as later
      from current
      join budget_use as u using (budget)
     where u.starts >= to_timestamp(current.starts_ms / 1000.0)
       and (%(subject)s::text is null or u.subject = %(subject)s)
     group by current.budget, current.policy, current.per_owner, current.every, current.most, current.starts_ms,
              current.next_ms, u.subject
)
select budget, subject, coalesce(now, 0)::bigint as now, coalesce(next, 0)::bigint, coalesce(later, 0)::bigint, allowed
  from used
 cross join lateral (select case when per_owner then coalesce(tarry_owner_limit(subject, policy, every), most)
                                 else most end as allowed) as limited
 order by coalesce(now, 0)::float8 / greatest(allowed, 1) desc, budget, subject
 limit %(limit)s;

-- name: budget_room
-- What is used of some budgets in a period, and their limit, in the order of the parameters.
select coalesce(u.used, 0)::bigint,
       case when per_owner then coalesce(tarry_owner_limit(w.subject, %(policy)s, w.every), w.most) else w.most end
  from unnest(%(budgets)s::text[], %(subjects)s::text[], %(starts_ms)s::bigint[], %(owners)s::boolean[],
              %(everys)s::text[], %(limits)s::bigint[])
       with ordinality as w (budget, subject, starts_ms, per_owner, every, most, place)
  left join budget_use as u
    on u.budget = w.budget and u.subject = w.subject and u.starts = to_timestamp(w.starts_ms / 1000.0)
 order by w.place;

-- name: prune_budget_charges
-- Answers as old as the history that is deleted, in slices. Those of retries that are still open are kept: their request
-- may be repeated.
delete from budget_charge
 where ctid in (select charge.ctid
                  from budget_charge as charge
                 where charge.charged_at < statement_timestamp() - %(older_than)s::interval
                   and not exists (select from retry
                                    where retry.id = charge.retry_id and retry.round = charge.round
                                      and retry.state = 'claimed')
                 limit %(limit)s);

-- name: prune_budget_uses
-- Counters of periods as old as the history that is deleted, in slices.
delete from budget_use
 where ctid in (select ctid from budget_use where ends < statement_timestamp() - %(older_than)s::interval limit %(limit)s);

-- name: prune_budget_subjects
-- Owners and queues without counters, in slices. A charge that needs one creates it again.
delete from budget_subject
 where ctid in (select subject.ctid
                  from budget_subject as subject
                 where not exists (select from budget_use as u
                                    where u.budget = subject.budget and u.subject = subject.subject)
                 limit %(limit)s);
