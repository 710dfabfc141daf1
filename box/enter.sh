#!/bin/sh
# Writes this container's secrets into files in memory that only its user can read, then runs the command.
set -eu
umask 077
mkdir -p "$SPARK_CONF_DIR" "$DASK_CONFIG"
cp /opt/prdp/etc/log4j2.properties "$SPARK_CONF_DIR/"

if [ -f /run/secrets/spark_secret ]; then
    { cat /opt/prdp/etc/standalone.conf /opt/prdp/etc/box.conf
      printf 'spark.authenticate.secret %s\n' "$(cat /run/secrets/spark_secret)"
    } > "$SPARK_CONF_DIR/spark-defaults.conf"
fi
if [ -f /run/secrets/dask_key ]; then
    cp /run/secrets/dask_ca "$DASK_CONFIG/ca.pem"
    cp /run/secrets/dask_certificate "$DASK_CONFIG/cert.pem"
    cp /run/secrets/dask_key "$DASK_CONFIG/key.pem"
    sed "s#FOLDER#$DASK_CONFIG#g" /opt/prdp/etc/tls.yaml > "$DASK_CONFIG/dask.yaml"
fi
{
    if [ -f /run/secrets/ledger_password ]; then
        printf 'ledger:5432:ledger:%s:%s\n' "$PGUSER" "$(cat /run/secrets/ledger_password)"
    fi
    if [ -f /run/secrets/database_password ]; then
        printf 'database:5432:airflow:airflow:%s\n' "$(cat /run/secrets/database_password)"
    fi
} > "$PGPASSFILE"
umask 022  # what is published may be read by all
exec "$@"
