#!/bin/sh
# Runs one of the box's workers under its container's name: worker ADDRESS, of Spark's master or of Dask's scheduler.
# Spark's logs of executors there are confidential, and go with the container.
case $1 in
    spark:*)
        exec spark-class org.apache.spark.deploy.worker.Worker --host "$(hostname)" --port 7077 --webui-port 8081 \
            --cores "$WORKER_CORES" --memory "$WORKER_MEMORY" --work-dir /srv/prdp/spark "$1" ;;
    *)
        exec dask worker "$1" --host "$(hostname)" --worker-port 8786 --nthreads "$WORKER_CORES" --memory-limit 0 --no-nanny \
            --no-dashboard --local-directory /tmp ;;
esac
