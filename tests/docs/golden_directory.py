"""Makes the golden files of docs/formats.md; run it only when a format is changed on purpose:

python -m tests.docs.golden_directory
"""

from __future__ import annotations

import shutil
from pathlib import Path

from quorumlog.batch import EntryBatch
from quorumlog.cli.carry.export_format import Ending, encoded, head, tail
from quorumlog.config import StoreConfig
from quorumlog.entry import Entry, Formation, HardState, Replica
from quorumlog.net.frame import encode_frame
from quorumlog.store.disk import OsDisk
from quorumlog.store.log_points import LogPoint
from quorumlog.store.member_directory import open_member_directory
from quorumlog.wire.client_messages import AppendRequest

GOLDEN = Path(__file__).parent / "golden"
FRAME_NAME = "frame.bin"
EXPORT_NAME = "export.bin"
DIRECTORY_ID = "00112233445566778899aabbccddeeff"
CLUSTER_ID = "ffeeddccbbaa99887766554433221100"
OWN = Replica("n0", DIRECTORY_ID)
CONFIG = StoreConfig(segment_bytes=1024, index_segment_bytes=256, reserve_step_bytes=256)
BODY = b"\xa1" * 200
ENTRIES = 6


def write_golden(directory: Path) -> None:
    """What the only member of a group writes, by the real store, one frame and one export."""
    member = open_member_directory(
        OsDisk(),
        str(directory),
        group="g",
        member_id=OWN.member_id,
        config=CONFIG,
        group_size=1,
        draw_id=lambda: DIRECTORY_ID,
    )
    member.save_formation(Formation((OWN,), (OWN,), CLUSTER_ID))
    member.save_hard_state(HardState(1, OWN))
    for batch in (EntryBatch.noop(), EntryBatch.from_bodies([BODY] * ENTRIES)):
        end = member.store.end
        positions = member.store.plan(batch.sizes)
        batch.stamp(end.index + 1, 1, positions, end.chain)
        member.store.append(batch)
    task = member.store.begin_sync()
    assert task is not None
    task.run()
    member.store.finish_sync(task)
    end = member.store.end
    member.write_checkpoint(LogPoint(end.index, end.term, end.chain, end.position))
    member.close(True)
    (directory / FRAME_NAME).write_bytes(frame())
    (directory / EXPORT_NAME).write_bytes(export())


def frame() -> bytes:
    request = AppendRequest(request_id=7, timeout_ms=5000)
    return b"".join(map(bytes, encode_frame("g", request, EntryBatch.from_bodies([b"hello"]))))


def export() -> bytes:
    return head("g", 0) + encoded([Entry(1, 1, b"hello")]) + tail(Ending(1, 1))


def written_bytes(directory: Path) -> dict[str, bytes]:
    """Every file but the lock; segments that hold only zeros (space made ahead) are left out."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock" and path.read_bytes().strip(b"\0")
    }


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    write_golden(GOLDEN)
    kept = written_bytes(GOLDEN)
    for found in [p for p in GOLDEN.rglob("*") if p.is_file()]:
        if str(found.relative_to(GOLDEN)) not in kept:
            found.unlink()
    print("\n".join(f"{len(data):6} {name}" for name, data in kept.items()))
