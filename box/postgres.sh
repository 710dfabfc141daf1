#!/bin/sh
# Runs a PostgreSQL server: postgres.sh NAME, for which NAME.sh beside this file makes what is to be in it. The superuser has no
# password, and can only connect by the container's own socket.
set -eu
umask 077
data=/var/lib/ledger/data
mkdir -p "$PGHOST"
cp "/run/secrets/$1_certificate" "$PGHOST/server.crt"
cp "/run/secrets/$1_key" "$PGHOST/server.key"

if [ ! -d "$data" ]; then
    rm -rf "$data.part"
    initdb --pgdata "$data.part" --username ledger --auth peer --encoding UTF8 --locale C.UTF-8 --data-checksums \
        --no-instructions > /dev/null
    mv "$data.part" "$data"
fi

"/opt/ledger/$1.sh" &
exec postgres -D "$data" \
    -c listen_addresses='*' -c unix_socket_directories="$PGHOST" -c hba_file=/opt/ledger/hba.conf \
    -c ssl=on -c ssl_cert_file="$PGHOST/server.crt" -c ssl_key_file="$PGHOST/server.key" -c ssl_min_protocol_version=TLSv1.2 \
    -c password_encryption=scram-sha-256 -c log_min_error_statement=panic -c log_statement=none -c jit=off
