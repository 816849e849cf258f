-- Filters of the action log that few actions meet do not read all of it.

create index action_by on action (actor, at, id);
create index action_of_kind on action (kind, at, id);
