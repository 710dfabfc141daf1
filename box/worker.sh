#!/bin/sh
# Runs one of the box's workers under its container's name. Logs of executors there are confidential, and are removed with it.
exec spark-class org.apache.spark.deploy.worker.Worker --host "$(hostname)" --port 7077 --webui-port 8081 \
    --cores "$WORKER_CORES" --memory "$WORKER_MEMORY" --work-dir /srv/prdp/spark "$1"
