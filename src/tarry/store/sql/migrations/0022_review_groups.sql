-- Groups of the messages in review, without reading the messages: few retries are in review, so the index is small, and
-- costs the others nothing.
create index retry_review_groups on retry (fingerprint, queue, owner, updated_at, id) where state = 'in_review';
