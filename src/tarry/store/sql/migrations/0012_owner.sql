-- Whom a message belongs to, with the other values of a request that policies match on; and in each step of the history
-- what analytics count by.

alter table retry
    add column owner    text,
    add column job_type text,
    add column priority text;
comment on column retry.owner is 'Whom the message belongs to, as its request says: a user, a tenant, an organisation.';
comment on column retry.priority is 'The `priority` of the request, not of the AMQP message.';
create index retry_by_owner on retry (owner, id) where owner is not null;

create or replace view in_review as
select id, message_id, queue, exchange, routing_key, round, retry_count, max_retries, policy, error_class, error_type,
       error_reason, fingerprint, first_failed_at, updated_at as since, octet_length(body) as size,
       review_reason as reason, owner
  from retry
 where state = 'in_review';

create function tarry_about(policy text, error_class text, fingerprint text, hint_ms bigint, owner text) returns jsonb
language sql immutable as $$
-- What a scheduled or in-review step of the history says about its failure. What is not known is left out.
select jsonb_strip_nulls(jsonb_build_object('policy', policy, 'class', error_class, 'fingerprint', fingerprint,
                                            'hint_ms', hint_ms, 'owner', owner))
$$;
