-- Budgets stay exact if a request is delivered again after the retry that was charged for it should have come due; and
-- the search for a period with room takes microseconds for each that is full.

create function tarry_charge(
    ids uuid[], rounds int[], owners text[], queues text[], own_slots int[], due_ms bigint[], latest_ms bigint[],
    draws int[],
    policy text, budgets text[], pers text[], everys text[], limits bigint[], amounts bigint[], overs text[],
    opens_ms bigint[], spreads_ms bigint[], starts_ms bigint[], ends_ms bigint[], is_all boolean, now_ms bigint[])
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
-- A retry that was charged before gets the same answer; unless it is overdue by now: its request was not handled to the
-- end. Then it is charged for the period in which it comes due now. It stays charged in those that hold both moments.
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
    paid      timestamptz; -- when it should have come due, if it is overdue
    before    text[];
    subjects  text[];
    allowed   bigint[];
    reached   int := 0;
    slot      int;
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
          from unnest(ids, rounds, owners, queues, own_slots, due_ms, latest_ms, draws, now_ms)
               with ordinality as a (id, round, owner, queue, slot, due, latest, draw, now, place)
         order by a.owner, a.queue, a.slot, a.place
    loop
        select * into known from budget_charge as c where c.retry_id = ask.id and c.round = ask.round;
        paid := case when known.due_at <= to_timestamp(ask.now / 1000.0) then known.due_at end;
        if known.retry_id is null or paid is not null then
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
            slot := null;
            missed := null;
            while known.outcome is null loop
                -- Its own slot; then the next one that decides: either all budgets have room, or the first one without
                -- does not say `defer`. Those before `reached` do not for anybody with these counters who is charged in
                -- none of them. The series comes in order.
                select s, first_full.b
                  into slot, lacking
                  from generate_series(case when slot is null then ask.slot
                                            when paid is null then greatest(slot + 1, reached)
                                            else slot + 1 end, n_slots) as s
                 cross join lateral
                       (select (select b
                                  from generate_series(1, n_budgets) as b
                                 where subjects[b] is not null
                                   and not coalesce(paid >= to_timestamp(starts_ms[(s - 1) * n_budgets + b] / 1000.0), false)
                                   and amounts[b] + coalesce(
                                       (select u.used
                                          from budget_use as u
                                         where u.budget = budgets[b] and u.subject = subjects[b]
                                           and u.starts = to_timestamp(starts_ms[(s - 1) * n_budgets + b] / 1000.0)), 0)
                                       > allowed[b]
                                 order by b
                                 limit 1)
                        offset 0) as first_full (b)
                 where s = ask.slot or first_full.b is null
                    or overs[first_full.b] <> 'defer' or allowed[first_full.b] < amounts[first_full.b]
                 limit 1;
                missed := coalesce(missed, lacking);
                if slot is null then
                    slot := n_slots + 1;
                    known.outcome := case when is_all then 'beyond' else 'more' end;
                elsif lacking is null then
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
                if paid is null then
                    insert into budget_charge
                    values (known.retry_id, known.round, known.outcome, known.due_at, known.full_one, known.most)
                        on conflict on constraint budget_charge_pkey do nothing;
                else
                    update budget_charge as c
                       set outcome = known.outcome, due_at = known.due_at, full_one = known.full_one, most = known.most,
                           charged_at = known.charged_at
                     where c.retry_id = ask.id and c.round = ask.round and c.due_at = paid;
                end if;
                if not found then
                    -- A router with other policy files has just asked for it too.
                    select * into known from budget_charge as c where c.retry_id = ask.id and c.round = ask.round;
                else
                    for b in 1 .. n_budgets loop
                        continue when subjects[b] is null;
                        if paid >= to_timestamp(starts_ms[(ask.slot - 1) * n_budgets + b] / 1000.0)
                           and (known.outcome <> 'charged'
                                or paid < to_timestamp(starts_ms[(slot - 1) * n_budgets + b] / 1000.0)) then
                            update budget_use as u
                               set used = greatest(0, u.used - amounts[b])
                             where u.budget = budgets[b] and u.subject = subjects[b]
                               and u.starts = to_timestamp(starts_ms[(ask.slot - 1) * n_budgets + b] / 1000.0);
                        end if;
                        continue when known.outcome <> 'charged'
                                      or paid >= to_timestamp(starts_ms[(slot - 1) * n_budgets + b] / 1000.0);
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

create or replace function tarry_charge(
    ids uuid[], rounds int[], owners text[], queues text[], own_slots int[], due_ms bigint[], latest_ms bigint[],
    draws int[],
    policy text, budgets text[], pers text[], everys text[], limits bigint[], amounts bigint[], overs text[],
    opens_ms bigint[], spreads_ms bigint[], starts_ms bigint[], ends_ms bigint[], is_all boolean)
returns table (retry_id uuid, round int, outcome text, due bigint, full_one text, most bigint)
language sql
as $$
-- For routers of the previous version, which call it while they are running.
select *
  from tarry_charge(ids, rounds, owners, queues, own_slots, due_ms, latest_ms, draws, policy, budgets, pers, everys,
                    limits, amounts, overs, opens_ms, spreads_ms, starts_ms, ends_ms, is_all, null::bigint[])
$$;
