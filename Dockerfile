# The images of docker-compose.yml: prdp with its Spark, the ledger's PostgreSQL, and an Airflow beside prdp.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS libraries
WORKDIR /src
COPY constraints.txt pyproject.toml ./
RUN python3 -m venv /opt/prdp \
    && python3 -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
extras = (project["optional-dependencies"][extra] for extra in ("cluster", "java", "plots", "postgres", "s3")); \
print(*project["dependencies"], *(line for extra in extras for line in extra), sep="\n")' > needed.txt \
    && /opt/prdp/bin/pip install --no-cache-dir -c constraints.txt -r needed.txt
COPY CHANGELOG.md LICENSE README.md ./
COPY conf conf
COPY jobs jobs
COPY pipeline pipeline
COPY prdp prdp
COPY udfs udfs
# Spark starts the Java that prdp finds: here the wheel's, behind a script that each user may run.
RUN /opt/prdp/bin/pip install --no-cache-dir --no-deps . \
    && /opt/prdp/bin/python -c 'from pathlib import Path; from pipeline.engines.spark_session import java_home; java_home({}, Path("/opt/prdp"))' \
    && chmod 0755 /opt/prdp/java/bin/java \
    && ln -s "$(/opt/prdp/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" /opt/prdp/home \
    && ln -s home/pyspark /opt/prdp/spark \
    && /opt/prdp/bin/python -m compileall -q /opt/prdp/lib
COPY box/enter.sh /opt/prdp/bin/enter
COPY box/worker.sh /opt/prdp/bin/worker
COPY conf/spark/log4j2.properties conf/spark/standalone.conf /opt/prdp/etc/
COPY box/spark.conf /opt/prdp/etc/box.conf

FROM ${BASE} AS prdp
# One user releases, and runs the workers: they share the microdata and the staging folder, which are its own.
RUN groupadd --gid 10001 prdp \
    && useradd --uid 10001 --gid prdp --create-home --shell /usr/sbin/nologin prdp \
    && install -d -o prdp -g prdp -m 0700 /srv/prdp/data /srv/prdp/staging /srv/prdp/spark \
    && install -d -o prdp -g prdp -m 0755 /srv/prdp/releases
COPY --from=libraries /opt/prdp /opt/prdp
COPY box/site.yaml /etc/prdp/site.yaml
ENV PATH=/opt/prdp/bin:$PATH \
    JAVA_HOME=/opt/prdp/java \
    SPARK_HOME=/opt/prdp/spark \
    SPARK_CONF_DIR=/run/prdp/private/spark \
    PGPASSFILE=/run/prdp/private/passfile
USER 10001:10001
WORKDIR /srv/prdp
ENTRYPOINT ["enter"]

FROM ${BASE} AS ledger
# No cluster of the package's own: box/ledger.sh makes the ledger's.
RUN mkdir /etc/postgresql-common \
    && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
    && apt-get update \
    && apt-get install --yes --no-install-recommends postgresql-15=15.* \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10002 ledger \
    && useradd --uid 10002 --gid ledger --no-create-home --shell /usr/sbin/nologin ledger \
    && install -d -o ledger -g ledger -m 0700 /var/lib/ledger
COPY box/ledger.sh box/hba.conf box/logins.sql box/members.sql conf/ledger/roles.sql /opt/ledger/
ENV PGHOST=/run/prdp/private
USER 10002:10002
CMD ["/opt/ledger/ledger.sh"]

FROM ${BASE} AS airflow-libraries
COPY conf/airflow/constraints.txt conf/airflow/requirements.txt /src/
RUN python3 -m venv /opt/airflow \
    && /opt/airflow/bin/pip install --no-cache-dir -c /src/constraints.txt -r /src/requirements.txt \
    && /opt/airflow/bin/python -m compileall -q /opt/airflow/lib

# Airflow has an environment of its own, and calls that of prdp by its path: the two pin different libraries.
FROM prdp AS airflow
USER 0
COPY --from=airflow-libraries /opt/airflow /opt/airflow
RUN install -d -o prdp -g prdp -m 0700 /srv/airflow
COPY box/airflow.sh /opt/airflow/bin/run-airflow
COPY box/airflow.cfg /opt/airflow/
COPY box/trigger.py /opt/airflow/bin/trigger-release
COPY jobs/dags /opt/airflow/dags
ENV PATH=/opt/prdp/bin:/opt/airflow/bin:$PATH \
    AIRFLOW_HOME=/srv/airflow \
    AIRFLOW_CONFIG=/opt/airflow/airflow.cfg
USER 10001:10001
CMD ["run-airflow"]
