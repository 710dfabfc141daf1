#!/bin/sh
# Runs the ledger's PostgreSQL. The superuser has no password, and can only connect by the container's own socket.
set -eu
umask 077
bin=$(echo /usr/lib/postgresql/*/bin)
data=/var/lib/ledger/data
mkdir -p "$PGHOST"
cp /run/secrets/ledger_certificate "$PGHOST/server.crt"
cp /run/secrets/ledger_key "$PGHOST/server.key"

if [ ! -d "$data" ]; then
    rm -rf "$data.part"
    "$bin/initdb" --pgdata "$data.part" --username ledger --auth peer --encoding UTF8 --locale C.UTF-8 --data-checksums \
        --no-instructions > /dev/null
    mv "$data.part" "$data"
fi

# Logins, then (once `prdp ledger create` of the service `setup` has made the tables) what each of them may do.
until_done() {
    until psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --dbname "$1" --file "$2" > /dev/null 2>&1; do sleep 1; done
}
made="SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = 'prdp' AND tablename = 'entries'"
{
    until_done postgres /opt/ledger/logins.sql
    until psql --no-psqlrc --tuples-only --dbname ledger --command "$made" 2> /dev/null | grep -q 1; do sleep 1; done
    until_done ledger /opt/ledger/roles.sql
    until_done ledger /opt/ledger/members.sql
    touch "$PGHOST/ready"
} &
exec "$bin/postgres" -D "$data" \
    -c listen_addresses='*' -c unix_socket_directories="$PGHOST" -c hba_file=/opt/ledger/hba.conf \
    -c ssl=on -c ssl_cert_file="$PGHOST/server.crt" -c ssl_key_file="$PGHOST/server.key" -c ssl_min_protocol_version=TLSv1.2 \
    -c password_encryption=scram-sha-256 -c log_min_error_statement=panic -c log_statement=none
