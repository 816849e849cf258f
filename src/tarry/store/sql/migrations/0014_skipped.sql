-- The state of a retry that a rule of its policy ended: its message is not wanted any more.

alter table retry drop constraint retry_state;
alter table retry
  add constraint retry_state
check (state in ('claimed', 'scheduled', 'returned', 'succeeded', 'in_review', 'cancelled', 'held', 'unroutable', 'discarded',
                 'skipped')) not valid;

do $$
-- A partition has a constraint of its own, which would stay. The rows that exist need no check: the new constraints only
-- allow more.
declare
    allowed   text := (select pg_get_expr(conbin, conrelid) from pg_constraint
                        where conrelid = 'transition'::regclass and conname = 'transition_state');
    partition regclass;
begin
    alter table transition drop constraint transition_state;
    for partition in select inhrelid from pg_inherits where inhparent = 'transition'::regclass loop
        execute format('alter table %s drop constraint if exists transition_state', partition);
    end loop;
    execute format('alter table transition add constraint transition_state check (%s or state = ''skipped'') not valid', allowed);
end $$;

-- Their number in the last day, and those to delete.
create index retry_skipped on retry (updated_at) where state = 'skipped';
