-- Budgets: how many retries may come due in an hour, a day or a month.

create table budget_subject (
    budget  text not null,
    subject text not null,
    primary key (budget, subject)
);
comment on table budget_subject is
    'Whose retries are counted together: an owner, a queue, or nothing for a whole policy. A charge locks its row.';
comment on column budget_subject.budget is 'Policy, per, every, unit and zone: uploads/owner/1d/retries/UTC.';

create table budget_use (
    budget  text        not null,
    subject text        not null,
    starts  timestamptz not null,
    ends    timestamptz not null,
    used    bigint      not null check (used >= 0),
    primary key (budget, subject, starts)
);
comment on table budget_use is 'What is used of each budget in each period. Periods to come have what was deferred to them.';
create index budget_use_ends on budget_use (ends);

create table budget_charge (
    retry_id   uuid        not null,
    round      integer     not null,
    outcome    text        not null check (outcome in ('charged', 'review', 'skip', 'late', 'beyond')),
    due_at     timestamptz,
    full_one   text,
    most       bigint,
    charged_at timestamptz not null default clock_timestamp(),
    primary key (retry_id, round)
);
comment on table budget_charge is
    'The answer to each retry that asked for room in its budgets. Asked again, also after a crash, it is the same.';
comment on column budget_charge.outcome is
    'charged; or, if there was no room: review or skip, as the budget says; late (the first room is too late for the '
    'message); beyond (there is no room for as long as a message can wait).';
comment on column budget_charge.due_at is 'When it comes due: in the period that is charged. Null if none is.';
comment on column budget_charge.full_one is 'The budget that had no room when it would have come due; null if all had.';
comment on column budget_charge.most is 'The limit of that budget then.';
create index budget_charge_charged_at on budget_charge (charged_at);

create table owner_limit (
    owner       text        not null,
    policy      text        not null default '',
    hourly      bigint check (hourly >= 0),
    daily       bigint check (daily >= 0),
    monthly     bigint check (monthly >= 0),
    max_retries integer check (max_retries >= 0),
    actor       text        not null,
    reason      text,
    at          timestamptz not null default clock_timestamp(),
    primary key (owner, policy)
);
comment on table owner_limit is
    'Exceptions for owners, set by operators: other limits of budgets per owner, and the most retries of a message.';
comment on column owner_limit.policy is 'Empty for all policies for which the owner has no exception of its own.';

create function tarry_owner_limit(of_owner text, of_policy text, every text) returns bigint
language sql stable as $$
-- The exception of an owner for a period of this length; null if there is none. One for the policy comes first.
select found.most
  from (select owner_limit.policy,
               case every when '1h' then hourly when '1d' then daily when '1mo' then monthly end as most
          from owner_limit
         where owner = of_owner and owner_limit.policy in (of_policy, '')) as found
 where found.most is not null
 order by found.policy desc
 limit 1
$$;

create function tarry_charge(
    ids uuid[], rounds int[], owners text[], queues text[], own_slots int[], due_ms bigint[], latest_ms bigint[],
    draws int[],
    policy text, budgets text[], pers text[], everys text[], limits bigint[], amounts bigint[], overs text[],
    opens_ms bigint[], spreads_ms bigint[], starts_ms bigint[], ends_ms bigint[], is_all boolean)
returns table (retry_id uuid, round int, outcome text, due bigint, full_one text, most bigint)
language plpgsql
set plan_cache_mode = 'force_generic_plan'
as $$
-- Charges a batch of retries of one policy. Each is charged in the first slot from its own on in which all budgets have
-- room, in each budget for the period that holds the slot; it then comes due at the beginning of that slot, plus its
-- part of the spread, or as asked if it is its own slot. starts_ms and ends_ms have, for each slot, the period of each
-- budget. If a budget without room does not say `defer`, the retry is not charged. The answer `more` is not stored: no
-- slot had room, and there may be later ones (is_all is false).
--
-- All counters of an owner, queue or policy are locked by their row in budget_subject, in a fixed order, before any of
-- them is read. So charges are exact with any number of routers, and do not deadlock. Each statement in here sees what
-- was committed before it began.
#variable_conflict use_column
declare
    n_budgets constant int := cardinality(budgets);
    n_slots   constant int := cardinality(opens_ms);
    ask       record;
    known     budget_charge;
    before    text[];
    subjects  text[];
    allowed   bigint[];
    reached   int := 0;
    slot      int;
    spent     bigint;
    lacking   int; -- the first budget without room in this slot
    missed    int; -- the same of its own slot
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;

    insert into budget_subject (budget, subject)
    select distinct budgets[b], case pers[b] when 'owner' then a.owner when 'queue' then a.queue else '' end
      from unnest(owners, queues) as a (owner, queue)
     cross join generate_subscripts(budgets, 1) as b
     where pers[b] <> 'owner' or a.owner is not null
     order by 1, 2
        on conflict (budget, subject) do update set budget = excluded.budget where false;

    for ask in
        select a.*
          from unnest(ids, rounds, owners, queues, own_slots, due_ms, latest_ms, draws)
               with ordinality as a (id, round, owner, queue, slot, due, latest, draw, place)
         order by a.owner, a.queue, a.slot, a.place
    loop
        select * into known from budget_charge as c where c.retry_id = ask.id and c.round = ask.round;
        if not found then
            if before is distinct from array[ask.owner, ask.queue] then
                before := array[ask.owner, ask.queue];
                reached := 0;
                subjects := array(select case pers[b] when 'owner' then ask.owner when 'queue' then ask.queue else '' end
                                    from generate_subscripts(budgets, 1) as b order by b);
                allowed := array(select case when pers[b] = 'owner'
                                             then coalesce(tarry_owner_limit(ask.owner, policy, everys[b]), limits[b])
                                             else limits[b] end
                                   from generate_subscripts(budgets, 1) as b order by b);
            end if;
            known := row(ask.id, ask.round, null, null, null, null, clock_timestamp());
            slot := ask.slot;
            missed := null;
            while known.outcome is null loop
                lacking := null;
                for b in 1 .. n_budgets loop
                    continue when subjects[b] is null;
                    select u.used into spent
                      from budget_use as u
                     where u.budget = budgets[b] and u.subject = subjects[b]
                       and u.starts = to_timestamp(starts_ms[(slot - 1) * n_budgets + b] / 1000.0);
                    if coalesce(spent, 0) + amounts[b] > allowed[b] then
                        lacking := b;
                        exit;
                    end if;
                end loop;
                missed := coalesce(missed, lacking);
                if lacking is null then
                    known.outcome := 'charged';
                    known.due_at := to_timestamp(case when slot = ask.slot then ask.due else opens_ms[slot]
                                                      + spreads_ms[slot] * ask.draw / 1000000 end / 1000.0);
                    if slot > ask.slot and known.due_at > to_timestamp(ask.latest / 1000.0) then
                        known.outcome := 'late';
                    end if;
                elsif overs[lacking] <> 'defer' then
                    known.outcome := overs[lacking];
                elsif allowed[lacking] < amounts[lacking] then
                    known.outcome := 'beyond';
                else
                    -- The slots before `reached` are full for everybody with these counters.
                    slot := greatest(slot + 1, reached);
                    if slot > n_slots then
                        known.outcome := case when is_all then 'beyond' else 'more' end;
                    end if;
                end if;
            end loop;
            reached := greatest(reached, slot);
            if missed is not null then
                known.full_one := budgets[missed];
                known.most := allowed[missed];
            end if;
            if known.outcome <> 'charged' then
                known.due_at := null;
            end if;
            if known.outcome <> 'more' then
                insert into budget_charge
                values (known.retry_id, known.round, known.outcome, known.due_at, known.full_one, known.most)
                    on conflict on constraint budget_charge_pkey do nothing;
                if not found then
                    -- A router with other policy files has just asked for it too.
                    select * into known from budget_charge as c where c.retry_id = ask.id and c.round = ask.round;
                elsif known.outcome = 'charged' then
                    for b in 1 .. n_budgets loop
                        continue when subjects[b] is null;
                        insert into budget_use as u (budget, subject, starts, ends, used)
                        values (budgets[b], subjects[b], to_timestamp(starts_ms[(slot - 1) * n_budgets + b] / 1000.0),
                                to_timestamp(ends_ms[(slot - 1) * n_budgets + b] / 1000.0), amounts[b])
                            on conflict on constraint budget_use_pkey do update set used = u.used + excluded.used;
                    end loop;
                end if;
            end if;
        end if;
        retry_id := known.retry_id;
        round := known.round;
        outcome := known.outcome;
        due := (extract(epoch from known.due_at) * 1000)::bigint;
        full_one := known.full_one;
        most := known.most;
        return next;
    end loop;
end
$$;
