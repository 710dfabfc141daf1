# The images of docker-compose.yml: prdp with Spark and Dask, PostgreSQL, and an Airflow beside prdp.
# Libraries, prdp's own code and Airflow are layers of their own: images share them, and an edit of the code leaves the
# large ones alone. What compiles and installs stays in the stages before.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS installer
# The base's own bundle, so that an authority that a site added to it is trusted.
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_NO_CACHE=1
WORKDIR /src
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir uv==0.13.9
COPY box/slim.sh ./

FROM installer AS libraries
# Extras of pyproject.toml. Others have their uses elsewhere: `plots` for pictures, `s3` for object stores.
ARG EXTRAS="cluster java postgres"
COPY pyproject.toml requirements/all.txt ./
# uv takes only files whose hash all.txt names.
RUN python3 -m venv --without-pip /opt/prdp \
    && python3 -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
extras = (project["optional-dependencies"][extra] for extra in sys.argv[1:]); \
print(*project["dependencies"], *(line for extra in extras for line in extra), sep="\n")' ${EXTRAS} > needed.txt \
    && /opt/uv/bin/uv pip install --quiet --python /opt/prdp/bin/python -c all.txt -r needed.txt \
    && ./slim.sh /opt/prdp \
    && ln -s "$(/opt/prdp/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" /opt/prdp/home \
    && ln -s home/pyspark /opt/prdp/spark

FROM libraries AS code
COPY CHANGELOG.md LICENSE README.md ./
COPY conf conf
COPY jobs jobs
COPY pipeline pipeline
COPY prdp prdp
COPY udfs udfs
# Spark starts the Java that prdp finds: here the wheel's, behind a script that each user may run.
RUN /opt/uv/bin/uv pip install --quiet --python /opt/prdp/bin/python --prefix /own --compile-bytecode --no-deps . \
    && /opt/prdp/bin/python -c 'from pathlib import Path; from pipeline.engines.spark_session import java_home; java_home({}, Path("/own"))' \
    && chmod 0755 /own/java/bin/java
COPY box/enter.sh /own/bin/enter
COPY box/worker.sh /own/bin/worker
COPY conf/dask/tls.yaml conf/spark/log4j2.properties conf/spark/standalone.conf /own/etc/
COPY box/spark.conf /own/etc/box.conf

FROM ${BASE} AS runtime
# One user releases, and runs the workers: they share the microdata and the staging folder, which are its own.
RUN groupadd --gid 10001 prdp \
    && useradd --uid 10001 --gid prdp --create-home --shell /usr/sbin/nologin prdp \
    && install -d -o prdp -g prdp -m 0700 /srv/prdp/data /srv/prdp/staging /srv/prdp/spark /srv/airflow \
    && install -d -o prdp -g prdp -m 0755 /srv/prdp/releases
COPY --from=libraries /opt/prdp /opt/prdp
COPY box/site.yaml /etc/prdp/site.yaml
ENV PATH=/opt/prdp/bin:$PATH \
    JAVA_HOME=/opt/prdp/java \
    SPARK_HOME=/opt/prdp/spark \
    SPARK_CONF_DIR=/run/prdp/private/spark \
    DASK_CONFIG=/run/prdp/private/dask \
    PGPASSFILE=/run/prdp/private/passfile
WORKDIR /srv/prdp
ENTRYPOINT ["enter"]

FROM runtime AS prdp
COPY --from=code /own /opt/prdp
USER 10001:10001

FROM ${BASE} AS postgres
# No cluster of the package's own: box/postgres.sh makes one. Of the rest, LLVM compiles queries that run for seconds, and
# Perl chooses between versions of the server: here is neither.
RUN mkdir /etc/postgresql-common \
    && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
    && apt-get update \
    && apt-get install --yes --no-install-recommends postgresql-15=15.* \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /usr/lib/*/libLLVM* /usr/lib/*/libz3.so* /usr/lib/llvm* \
       /usr/lib/postgresql/*/lib/llvmjit* /usr/lib/postgresql/*/lib/bitcode /usr/lib/*/perl /usr/share/perl \
       /usr/share/doc/* /usr/share/i18n /usr/share/locale/* \
    && groupadd --gid 10002 ledger \
    && useradd --uid 10002 --gid ledger --no-create-home --shell /usr/sbin/nologin ledger \
    && install -d -o ledger -g ledger -m 0700 /var/lib/ledger /var/lib/backups
COPY box/postgres.sh box/hba.conf box/ledger.sh box/logins.sql box/members.sql box/database.sh box/backup.sh \
     conf/ledger/roles.sql /opt/ledger/
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGHOST=/run/prdp/private
USER 10002:10002
CMD ["/opt/ledger/postgres.sh", "ledger"]

FROM installer AS airflow-libraries
COPY conf/airflow/constraints.txt ./
RUN python3 -m venv --without-pip /opt/airflow \
    && /opt/uv/bin/uv pip install --quiet --python /opt/airflow/bin/python --require-hashes -r constraints.txt \
    && ./slim.sh /opt/airflow

# Airflow has an environment of its own, and calls that of prdp by its path: the two pin different libraries.
FROM runtime AS airflow
COPY --from=airflow-libraries /opt/airflow /opt/airflow
COPY --from=code /own /opt/prdp
COPY box/airflow.sh /opt/airflow/bin/run-airflow
COPY box/airflow.cfg /opt/airflow/
COPY box/trigger.py /opt/airflow/bin/trigger-release
COPY jobs/dags /opt/airflow/dags
ENV PATH=/opt/prdp/bin:/opt/airflow/bin:$PATH \
    AIRFLOW_HOME=/srv/airflow \
    AIRFLOW_CONFIG=/opt/airflow/airflow.cfg
USER 10001:10001
CMD ["run-airflow"]
