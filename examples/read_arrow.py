"""Read a log as Arrow record batches, for any library that takes Arrow. Needs the extra `arrow`.

python examples/read_arrow.py
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog import LocalCluster, connect
from quorumlog.arrow import ENTRY_SCHEMA


def main() -> None:
    with LocalCluster(members=3) as cluster, connect(cluster.servers) as log:
        log.append_batch([b"%d" % number for number in range(10_000)])
        table = pa.Table.from_batches(log.read_arrow(0), ENTRY_SCHEMA)
    numbers = pc.cast(pc.cast(table["body"], pa.string()), pa.int64())
    print(
        f"{table.num_rows} rows of {', '.join(table.column_names)}, the bodies sum to {pc.sum(numbers)}"
    )


if __name__ == "__main__":
    main()
