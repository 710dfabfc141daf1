#!/bin/sh
# Runs all of Airflow in this container: the web server and its API, the scheduler, the DAG processor, the triggerer.
set -eu
umask 077
printf '{"admin": "%s"}\n' "$(cat /run/secrets/airflow_password)" > /run/prdp/private/airflow.json
exec airflow standalone
