-- The box's three logins, with the passwords of the secrets, and the ledger's database.
\set owner `cat /run/secrets/ledger_owner`
\set releaser `cat /run/secrets/ledger_releaser`
\set officer `cat /run/secrets/ledger_officer`
SELECT format('CREATE ROLE %I LOGIN', login) FROM unnest(ARRAY['owner', 'releaser', 'officer']) AS login
    WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login) \gexec
ALTER ROLE owner PASSWORD :'owner';
ALTER ROLE releaser PASSWORD :'releaser';
ALTER ROLE officer PASSWORD :'officer';
SELECT 'CREATE DATABASE ledger OWNER owner' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'ledger') \gexec
REVOKE CONNECT ON DATABASE ledger FROM PUBLIC;
GRANT CONNECT ON DATABASE ledger TO owner, releaser, officer;
