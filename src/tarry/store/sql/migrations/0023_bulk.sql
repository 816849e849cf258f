-- Jobs on retries that wait, beside those on messages in review.
alter table review_job drop constraint review_job_kind;
alter table review_job add constraint review_job_kind check (kind in ('redrive', 'discard', 'cancel', 'retry_now'));
comment on table review_job is 'A frozen selection of messages in review or of waiting retries, and what is to be done with each.';

-- The oldest retry of each queue in each state, without reading the retries.
drop index retry_by_state;
create index retry_by_state on retry (state, queue, first_failed_at);

create function tarry_review_group(by_what text, queue text, reason text, fingerprint text, owner text, since timestamptz)
returns text language sql stable as $$
-- The group of a message in review.
select case by_what
            when 'queue' then queue
            when 'reason' then coalesce(reason, '')
            when 'fingerprint' then coalesce(fingerprint, '')
            when 'owner' then coalesce(owner, '')
            when 'age' then case when since > statement_timestamp() - interval '1 hour' then 'less than an hour'
                                 when since > statement_timestamp() - interval '1 day' then 'an hour to a day'
                                 when since > statement_timestamp() - interval '7 days' then 'a day to a week'
                                 else 'more than a week' end
       end
$$;
