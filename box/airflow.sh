#!/bin/sh
# Runs all of Airflow in this container: the web server and its API, the scheduler, the DAG processor, the triggerer.
set -eu
printf '{"admin": "%s"}\n' "$(cat /run/secrets/airflow_password)" > /run/prdp/private/airflow.json
chmod 600 /run/prdp/private/airflow.json  # in a folder that is its user's alone
export PYTHONPATH=/opt/airflow/dags  # the triggerer imports prdp_operators
exec airflow standalone
