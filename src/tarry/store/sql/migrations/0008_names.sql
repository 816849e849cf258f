-- One word for each thing: a paused destination, the time a canary is observed, the options of a job, unconfirmed messages.

alter table hold rename to paused_destination;
alter table paused_destination rename column look to observe;
alter table paused_destination rename constraint hold_pkey to paused_destination_pkey;
alter table paused_destination rename constraint hold_kind to paused_destination_kind;
alter table paused_destination rename constraint hold_state to paused_destination_state;
comment on table paused_destination is
    'A destination whose returns wait in its held queue, and the progress of its release.';
comment on column paused_destination.destination is 'The last part of the name of the held queue.';
comment on column paused_destination.bound_at is
    'Since when messages that come due are held; null while the binding is not confirmed.';
comment on column paused_destination.observe is 'How long a canary is observed before more messages are released.';
comment on column paused_destination.stage is 'The stage of a release: which canary, then the rest.';
comment on column paused_destination.stage_ids is 'The retries of the current canary, each with its round.';
comment on table pause is 'A pause that was requested: no returns to the destinations that match the pattern.';

create function tarry_is_paused(queue text, exchange text, properties bytea) returns boolean language sql stable as $$
-- Whether messages to this destination are held.
select exists (select from paused_destination as paused
                where paused.destination = tarry_destination(queue, exchange, properties) and paused.state <> 'over')
$$;
drop function tarry_on_hold(text, text, bytea);

alter table review_job rename column manner to options;
update review_job
   set options = (options - 'fresh') || jsonb_build_object('reset_attempts', options -> 'fresh')
 where options ? 'fresh';

drop index review_item_open;
alter table review_item drop constraint review_item_state;
update review_item set state = 'unconfirmed' where state = 'in_doubt';
alter table review_item
  add constraint review_item_state
check (state in ('waiting', 'sending', 'done', 'gone', 'failed', 'unconfirmed', 'skipped'));
create unique index review_item_open on review_item (retry_id, round) where state in ('waiting', 'sending', 'unconfirmed');
