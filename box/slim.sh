#!/bin/sh
# Takes from the environment of a folder what nothing here runs (tests, headers, parts of Spark and Arrow), and compiles the rest.
set -eu
packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cd "$packages"
find . -depth -type d \( -name tests -o -path ./pyarrow/include -o -path ./numpy/_core/include -o -path ./pyspark/examples \) \
    -exec rm -rf {} +
rm -f pyarrow/libarrow_flight.so* pyarrow/libarrow_python_flight.so* pyarrow/_flight.*
if [ -d pyspark/jars ]; then
    # Hive's catalogue, Kubernetes, streaming's state store, Connect's server, machine learning, the Scala shell, other systems.
    cd pyspark/jars
    rm -f rocksdbjni-* hive-[!s]* spark-hive* datanucleus-* derby* ./*kubernetes-* vertx-* spark-connect_* spark-mllib_* spark-graphx_* breeze* \
        spire* cats-kernel* algebra_* arpack* lapack* blas* scala-compiler-* spark-repl_* \
        netty-tcnative-*-osx-* netty-tcnative-*-windows-*
    cd "$packages"
fi
"$1/bin/python" -m compileall -q -j 0 .
