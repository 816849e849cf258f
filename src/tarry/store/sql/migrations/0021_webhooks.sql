-- What is known about each webhook besides the topology: when its endpoint last took a delivery, and whether it is off.

create table webhook (
    name            text        primary key,
    last_success_at timestamptz,
    last_failure_at timestamptz,
    last_error      text,
    disabled_at     timestamptz,
    disabled_reason text
);
comment on table webhook is 'Every webhook that has delivered, or tried to.';
comment on column webhook.last_error is 'Why the last delivery that failed did.';
comment on column webhook.disabled_at is
    'Since when nothing is delivered: the endpoint said that it is gone (410). A test that succeeds ends that.';
