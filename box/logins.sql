-- The box's four logins, with the passwords of the secrets, and the ledger's database.
\set owner `cat /run/secrets/ledger_owner`
\set releaser `cat /run/secrets/ledger_releaser`
\set officer `cat /run/secrets/ledger_officer`
\set backup `cat /run/secrets/ledger_backup`
SELECT format('CREATE ROLE %I LOGIN', login) FROM unnest(ARRAY['owner', 'releaser', 'officer', 'backup']) AS login
    WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login) \gexec
ALTER ROLE owner PASSWORD :'owner';
ALTER ROLE releaser PASSWORD :'releaser';
ALTER ROLE officer PASSWORD :'officer';
ALTER ROLE backup BYPASSRLS PASSWORD :'backup';  -- pg_dump refuses where a policy could hide a row
SELECT 'CREATE DATABASE ledger OWNER owner' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'ledger') \gexec
REVOKE CONNECT ON DATABASE ledger FROM PUBLIC;
GRANT CONNECT ON DATABASE ledger TO owner, releaser, officer, backup;
