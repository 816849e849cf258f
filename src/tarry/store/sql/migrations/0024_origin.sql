alter table action add column origin text;
comment on column action.origin is 'From where it was requested: dashboard or api with the address, or command; null if not known.';
