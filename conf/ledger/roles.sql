-- Who may do what with a ledger on PostgreSQL: releases append, officers decide, readers read, the owner migrates.
--
-- Run it once, after the ledger was made (by `prdp ledger create postgresql://…`, as the database's owner), as
-- a superuser; running it again changes nothing:
--     psql --set ON_ERROR_STOP=1 --dbname DATABASE --file roles.sql
-- Then give each user its role, one alone where duties are to be separate:
--     CREATE ROLE alice LOGIN PASSWORD …;  GRANT prdp_release TO alice;
--
-- Roles belong to the server, and serve all its ledgers: CONNECT on each database says whose ledger it is.

BEGIN;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['prdp_owner', 'prdp_release', 'prdp_officer', 'prdp_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = name) THEN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', name);
        END IF;
    END LOOP;
END $$;

-- Who owns a table can take its triggers away: nobody who releases, decides or reads does.
ALTER SCHEMA prdp OWNER TO prdp_owner;
ALTER TABLE prdp.meta OWNER TO prdp_owner;
ALTER TABLE prdp.entries OWNER TO prdp_owner;
ALTER TABLE prdp.summaries OWNER TO prdp_owner;
ALTER FUNCTION prdp.entries_kept() OWNER TO prdp_owner;
ALTER FUNCTION prdp.entries_appended() OWNER TO prdp_owner;

REVOKE ALL ON SCHEMA prdp FROM PUBLIC, prdp_release, prdp_officer, prdp_reader;
REVOKE ALL ON prdp.meta, prdp.entries, prdp.summaries FROM PUBLIC, prdp_release, prdp_officer, prdp_reader;
GRANT USAGE ON SCHEMA prdp TO prdp_release, prdp_officer, prdp_reader;
GRANT SELECT ON prdp.meta, prdp.entries, prdp.summaries TO prdp_release, prdp_officer, prdp_reader;
GRANT INSERT ON prdp.entries TO prdp_release, prdp_officer;
-- Summaries are used only where an entry vouches for them: whoever changes them makes prdp compute them anew.
GRANT INSERT, DELETE ON prdp.summaries TO prdp_release;

-- Whoever may read sees every entry: a ledger that is seen in part would tell too little as spent. An entry is
-- appended where a policy of one of the user's roles lets its event pass, and nowhere else.
ALTER TABLE prdp.entries ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS entries_are_read_whole ON prdp.entries;
CREATE POLICY entries_are_read_whole ON prdp.entries FOR SELECT USING (true);
DROP POLICY IF EXISTS releases_decide_nothing ON prdp.entries;
CREATE POLICY releases_decide_nothing ON prdp.entries FOR INSERT TO prdp_release
    WITH CHECK (event NOT IN
        ('approved', 'budgeted', 'closed', 'rejected', 'reopened', 'required', 'revoked', 'withdrawn'));
DROP POLICY IF EXISTS officers_draw_nothing ON prdp.entries;
CREATE POLICY officers_draw_nothing ON prdp.entries FOR INSERT TO prdp_officer
    WITH CHECK (event NOT IN ('reserved', 'charged', 'tested', 'refused', 'drawn'));

COMMIT;
