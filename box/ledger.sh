#!/bin/sh
# Makes logins, then (once `prdp ledger create` of the service `setup` has made the tables) what each of them may do.
set -eu
until_done() {
    until psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --dbname "$1" --file "$2" > /dev/null 2>&1; do sleep 1; done
}
made="SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = 'prdp' AND tablename = 'entries'"
until_done postgres /opt/ledger/logins.sql
until psql --no-psqlrc --tuples-only --dbname ledger --command "$made" 2> /dev/null | grep -q 1; do sleep 1; done
until_done ledger /opt/ledger/roles.sql
until_done ledger /opt/ledger/members.sql
touch "$PGHOST/ready"
