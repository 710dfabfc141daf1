#!/bin/sh
# Keeps dumps of the ledger in /var/lib/backups: one within a minute of each change, for KEEP_DAYS days; the newest for ever.
# A dump's name has its time, and number and hash of the last entry that is surely in it.
set -eu
umask 077
mkdir -p "$PGHOST"
export PGPASSFILE="$PGHOST/passfile" PGHOST=ledger PGUSER=backup PGDATABASE=ledger
export PGSSLMODE=verify-full PGSSLROOTCERT=/run/secrets/ledger_ca PGCONNECT_TIMEOUT=10
printf 'ledger:5432:ledger:backup:%s\n' "$(cat /run/secrets/ledger_backup)" > "$PGPASSFILE"
last="SELECT seq || '-' || left(hash, 16) FROM prdp.entries ORDER BY seq DESC LIMIT 1"
cd /var/lib/backups

dumped() {
    pg_dump --format custom --file part && pg_restore --list part > /dev/null && sync part \
        && mv part "$(date -u +%Y%m%dT%H%M%SZ)-$1.dump" && echo "dumped up to entry $1"
}
while :; do
    newest=$(find . -name '*.dump' | sort | tail -n 1)
    if head=$(psql --no-psqlrc --tuples-only --no-align --command "$last") && [ -n "$head" ]; then
        case $newest in *"-$head.dump") true ;; *) dumped "$head" ;; esac && touch "${PGPASSFILE%/*}/done"
    fi
    find . -name '*.dump' ! -path "$newest" -mtime "+$KEEP_DAYS" -delete
    sleep 60
done
