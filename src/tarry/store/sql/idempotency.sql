-- name: begin_call
-- True if the caller may execute this call: its key is new or has expired, or the first attempt was interrupted.
insert into api_call as known (caller, key, fingerprint)
values (%(caller)s, %(key)s, %(fingerprint)s)
    on conflict (caller, key) do update
   set fingerprint = excluded.fingerprint, started_at = clock_timestamp(), finished_at = null, status = null,
       media_type = null, body = null
 where known.started_at < clock_timestamp() - %(keep)s::interval
    or (known.finished_at is null and known.fingerprint = excluded.fingerprint
        and known.started_at < clock_timestamp() - %(lease)s::interval)
returning true;

-- name: known_call
-- The stored call with this key.
select fingerprint, status, media_type, body from api_call where caller = %(caller)s and key = %(key)s;

-- name: finish_call
-- Store the response, for repeated calls with the same key.
update api_call
   set finished_at = clock_timestamp(), status = %(status)s, media_type = %(media_type)s, body = %(body)s
 where caller = %(caller)s and key = %(key)s and fingerprint = %(fingerprint)s;

-- name: drop_call
-- The call changed nothing: a repeated call is executed again.
delete from api_call where caller = %(caller)s and key = %(key)s and fingerprint = %(fingerprint)s and finished_at is null;

-- name: forget_calls
-- Delete expired calls, a bounded number at a time.
delete from api_call
 where (caller, key) in (select caller, key from api_call
                          where started_at < statement_timestamp() - %(keep)s::interval order by started_at limit 10000);
