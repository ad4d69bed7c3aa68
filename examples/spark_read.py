"""Spark reads a log: JSON bodies become columns, and are aggregated. Needs the extra `spark`.

python examples/spark_read.py
"""

from __future__ import annotations

import json

import quorumlog.spark
from quorumlog import LocalCluster, connect


def main() -> None:
    with LocalCluster(members=3) as cluster:
        with connect(cluster.servers) as log:
            records = [{"sensor": f"s{n % 3}", "value": n} for n in range(300)]
            log.append_batch([json.dumps(record).encode() for record in records])

        spark = quorumlog.spark.session(master="local[1]")
        entries = spark.read.format("quorumlog").option("servers", cluster.servers).load()
        readings = entries.selectExpr(
            "index", "from_json(CAST(body AS STRING), 'sensor STRING, value BIGINT') AS reading"
        )
        sums = readings.groupBy("reading.sensor").sum("reading.value").orderBy("sensor").collect()
        for sensor, total in sums:
            print(f"{sensor} {total}")


if __name__ == "__main__":
    main()
