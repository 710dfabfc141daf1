#!/bin/sh
# Makes Airflow's database and its login, with the password of the secret.
set -eu
until psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --dbname postgres > /dev/null 2>&1 << 'SQL'
\set password `cat /run/secrets/database_password`
SELECT 'CREATE ROLE airflow LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'airflow') \gexec
ALTER ROLE airflow PASSWORD :'password';
SELECT 'CREATE DATABASE airflow OWNER airflow' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'airflow') \gexec
REVOKE CONNECT ON DATABASE airflow FROM PUBLIC;
SQL
do sleep 1; done
touch "$PGHOST/ready"
