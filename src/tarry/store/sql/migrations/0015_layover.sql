-- Delays that are longer than the ladder holds: the message waits in several legs, and returns to the router in between.

alter table retry
  add column layover_round integer,
  add column layover_due   timestamptz,
  add column layover_content uuid,
  add column layover_leg   integer,
  add column layover_until timestamptz;
comment on column retry.layover_round is
    'The round that the other columns of the layover are about. They are about the current wait only if this is its round '
    'and layover_due its due time.';
comment on column retry.layover_due is 'The due time of that round: a redrive from review has the same round and another due time.';
comment on column retry.layover_content is 'A hash of the message on that leg: one with another content is no copy of it.';
comment on column retry.layover_leg is
    'The number of the latest leg that the broker has confirmed. An equal message on an earlier leg is a copy.';
comment on column retry.layover_until is 'When that leg ends at the router; null if it ends at the destination.';
create index retry_layover_until on retry (layover_until) where layover_until is not null;

do $$
-- One more note in the history, as in 0011: rows that exist need no check, since the new constraint only allows more.
declare
    allowed   text := (select pg_get_expr(conbin, conrelid) from pg_constraint
                        where conrelid = 'transition'::regclass and conname = 'transition_state');
    partition regclass;
begin
    alter table transition drop constraint transition_state;
    for partition in select inhrelid from pg_inherits where inhparent = 'transition'::regclass loop
        execute format('alter table %s drop constraint if exists transition_state', partition);
    end loop;
    execute format('alter table transition add constraint transition_state check (%s or state = ''layover'') not valid', allowed);
end $$;
comment on table transition is
    'Append-only: every step of every retry, and the notes duplicate, overdue, recovered, started, stuck and layover.';
