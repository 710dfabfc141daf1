#!/bin/bash
# Runs all of Airflow in this container. Where one part ends, all do, and the container is started again.
set -eu
printf '{"admin": "%s"}\n' "$(cat /run/secrets/airflow_password)" > /run/prdp/private/airflow.json
chmod 600 /run/prdp/private/airflow.json  # in a folder that is its user's alone
export PYTHONPATH=/opt/airflow/dags  # the triggerer imports prdp_operators
until airflow db migrate; do sleep 3; done
trap 'kill $(jobs -p); wait; exit 0' TERM INT
for part in api-server scheduler dag-processor triggerer; do
    airflow "$part" &
done
wait -n || true
kill $(jobs -p)
wait
exit 1
