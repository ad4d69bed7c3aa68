"""audit: do all places hold the same log? Every digest recomputed, and all places compared.

A place is read in chunks, each a work of an engine. It recomputes CRC and chain of its entries and makes
one digest of a block of headers, CRC and chain included: equal digests are equal entries. Only where two
blocks differ are their headers laid side by side, for the first entry and field that does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise, zip_longest

import msgspec
import numpy as np

from quorumlog.errors import (
    ConfigError,
    DirectoryDamaged,
    IndexOutOfRange,
    LedgerError,
    ProtocolViolation,
    Unreachable,
)
from quorumlog.header_array import HEADER_DTYPE, UInt64Array, field_of
from quorumlog.pipelines.archive import Archive
from quorumlog.pipelines.archive_parts import check
from quorumlog.pipelines.engine import LocalEngine, WorkEngine
from quorumlog.pipelines.places import Place, as_seen_anywhere, chain_at_end, connected, open_log
from quorumlog.pipelines.tables.target import holes_of, table_at

BLOCK_ENTRIES = 1 << 14
CHUNK_BLOCKS = 32


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Where two places part, or one is damaged (`other` is "" then)."""

    place: str
    other: str = ""
    index: int = -1
    """-1: of no single entry."""
    what: str


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    first_index: int
    stop_index: int
    entries: int
    """Whose digests were recomputed and are right."""
    problem: str = ""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    places: tuple[Audited, ...]
    differences: tuple[Difference, ...]
    """The first of each pair of places, by index; empty: it is one log."""


def members_of(servers: Place) -> tuple[list[Place], list[Difference]]:
    """A place for each member; those that do not answer are differences."""
    with connected(servers) as log:
        rows = log.status()
    if not any(row.reachable for row in rows):
        raise Unreachable(
            f"no member answers at {servers.servers}; start them, or name their directories"
        )
    return (
        [msgspec.structs.replace(servers, member_id=row.id) for row in rows if row.reachable],
        [
            Difference(place=row.id or row.address, what=f"does not answer: {row.problem}")
            for row in rows
            if not row.reachable
        ],
    )


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    place: Place
    cuts: tuple[int, ...]
    """Blocks lie between neighbours."""


class ChunkDigests(msgspec.Struct, frozen=True, kw_only=True):
    blocks: tuple[bytes, ...]
    """In order; fewer than asked for where the chunk cannot be read to its end. Empty: deleted meanwhile
    by retention, at least in part."""
    entries: int
    chain_before: int
    last_chain: int
    """-1, of both: not read."""
    index: int = -1
    problem: str = ""


def digests_of(chunk: Chunk) -> ChunkDigests:
    """A work: nothing is written."""
    cuts, skipped = chunk.cuts, 0
    while True:
        found, begin = _digests_from(chunk.place, cuts[skipped:])
        if begin is None:
            break
        skipped = next((n for n, cut in enumerate(cuts) if cut >= begin), len(cuts) - 1)
        if skipped == len(cuts) - 1:
            found = ChunkDigests(blocks=(), entries=0, chain_before=-1, last_chain=-1)
            break
    if not skipped:
        return found
    return msgspec.structs.replace(found, blocks=(b"",) * skipped + found.blocks, chain_before=-1)


def _digests_from(place: Place, cuts: tuple[int, ...]) -> tuple[ChunkDigests, int | None]:
    """With where the log begins, if that is after what is asked for."""
    blocks: list[bytes] = []
    first, stop = cuts[0], cuts[-1]
    next_index, before, chain = first, -1, -1
    digest = hashlib.blake2b(digest_size=16)
    stops = iter(cuts[1:])
    block_stop = next(stops)
    index, problem, begin = -1, "", None
    try:
        with closing(open_log(place)) as log:
            for batch in log.batches(first, stop):
                if batch.first_index != next_index:
                    raise ProtocolViolation(f"entry {next_index} did not come")
                if chain >= 0 and batch.chain_before != chain:
                    raise ProtocolViolation(f"chain_crc does not continue at index {next_index}")
                check(batch)
                before = batch.chain_before if before < 0 else before
                chain = chain_at_end(batch)
                words = batch.words()
                while batch.last_index + 1 >= block_stop:
                    at = block_stop - batch.first_index
                    digest.update(_bytes_of(words[:, next_index - batch.first_index : at]))
                    blocks.append(digest.digest())
                    digest = hashlib.blake2b(digest_size=16)
                    next_index, block_stop = block_stop, next(stops, stop + 1)
                digest.update(_bytes_of(words[:, next_index - batch.first_index :]))
                next_index = batch.last_index + 1
    except DirectoryDamaged as error:
        index, problem = error.index, str(error)
    except (LedgerError, ProtocolViolation) as error:
        index, problem = next_index, str(error)
        if place.servers and isinstance(error, IndexOutOfRange):
            begin = error.ledger_begin_index if error.ledger_begin_index > next_index else None
    if not problem and next_index != stop:
        index, problem = next_index, f"entries {next_index} .. {stop - 1} did not come"
    found = ChunkDigests(
        blocks=tuple(blocks),
        entries=next_index - first,
        chain_before=before,
        last_chain=chain,
        index=index,
        problem=problem,
    )
    return found, begin


def _bytes_of(words: UInt64Array) -> bytes:
    """Entry by entry, so that it does not matter how they were cut into batches."""
    return np.ascontiguousarray(words.T).tobytes()


def audit(
    places: Sequence[Place],
    *,
    engine: WorkEngine | None = None,
    report: Callable[[int, int], None] = lambda done, in_all: None,
) -> Audit:
    """Read every place whole; servers are each of their members. `engine`: where that is done (default:
    threads of this process). A place that cannot be opened is a difference as well, and so are rows of
    an archive that its table lacks. Raises ConfigError if there is no place."""
    missing: list[Difference] = []
    configured, places = places, []
    for place in configured:
        if place.servers and not place.member_id:
            members, silent = members_of(place)
            places, missing = [*places, *members], [*missing, *silent]
        else:
            places = [*places, place]
    if not places:
        raise ConfigError("there is nothing to audit: name servers, directories or an archive")
    bounds: dict[int, tuple[int, int]] = {}
    identities: dict[int, tuple[str, str]] = {}
    differences = missing
    for number, place in enumerate(places):
        try:
            with closing(open_log(place)) as log:
                bounds[number] = (log.begin_index, log.stop_index)
                identities[number] = (log.group, log.cluster_id)
        except (LedgerError, DirectoryDamaged, ProtocolViolation) as error:
            differences.append(Difference(place=place.name, what=f"cannot be opened: {error}"))
    differences += _other_logs(places, identities)
    # Side by side, so that works that run together read other places.
    of_places = [[(n, chunk) for chunk in _chunks(places[n], n, bounds)] for n in bounds]
    chunks = [each for beside in zip_longest(*of_places) for each in beside if each is not None]
    in_all = sum(stop - first for first, stop in bounds.values())
    digests: dict[int, dict[tuple[int, int], bytes]] = {number: {} for number in bounds}
    entries = dict.fromkeys(bounds, 0)
    problems: dict[int, tuple[int, str]] = {}
    last_chain: dict[int, int] = {number: 0 if bounds[number][0] == 0 else -1 for number in bounds}
    done = 0
    results = (engine or LocalEngine()).map(digests_of, [chunk for _, chunk in chunks])
    for (number, chunk), found in zip(chunks, results, strict=True):
        blocks = zip(pairwise(chunk.cuts), found.blocks, strict=False)
        digests[number].update((cuts, digest) for cuts, digest in blocks if digest)
        entries[number] += found.entries
        at_problem = (found.index, found.problem)
        chains = (last_chain[number], found.chain_before)
        if not found.problem and -1 not in chains and chains[0] != chains[1]:
            at_problem = (chunk.cuts[0], "chain_crc does not continue the entry before")
        if at_problem[1]:
            problems.setdefault(number, at_problem)
        last_chain[number] = found.last_chain if not found.problem else -1
        done += chunk.cuts[-1] - chunk.cuts[0]
        report(done, in_all)
    differences += [
        Difference(place=places[number].name, index=index, what=problem)
        for number, (index, problem) in problems.items()
    ]
    differences += _compared(places, digests)
    differences += [each for number in bounds for each in _table_holes(places[number])]
    return Audit(
        places=tuple(
            Audited(
                place=places[number].name,
                first_index=first,
                stop_index=stop,
                entries=entries[number],
                problem=problems[number][1] if number in problems else "",
            )
            for number, (first, stop) in bounds.items()
        ),
        differences=tuple(sorted(differences, key=lambda each: (each.index, each.place, each.other))),
    )


def _table_holes(place: Place) -> Iterator[Difference]:
    """An archive that is a table is audited as both: rows of it may have been taken back or deleted."""
    table = table_at(place.archive, is_read=True) if place.archive else None
    if table is None:
        return
    with closing(Archive.open(place.archive)) as kept:
        log = f"{kept.cluster_id}/{kept.group}"
        for hole in holes_of(table, kept.manifest.parts, log):
            yield Difference(place=place.name, index=hole.index, what=hole.what)


def _other_logs(places: Sequence[Place], identities: dict[int, tuple[str, str]]) -> Iterator[Difference]:
    numbers = list(identities)
    for other in numbers[1:]:
        for name, ours, theirs in zip(
            ("group", "cluster id"), identities[numbers[0]], identities[other], strict=True
        ):
            if ours and theirs and ours != theirs:
                yield Difference(
                    place=places[numbers[0]].name,
                    other=places[other].name,
                    what=f"they are different logs: the {name} is {ours} and {theirs}",
                )


def _chunks(place: Place, number: int, bounds: dict[int, tuple[int, int]]) -> Iterator[Chunk]:
    """Blocks end at multiples of `BLOCK_ENTRIES`, and where any place begins or ends: so a block lies
    wholly within a place or wholly outside."""
    first, stop = bounds[number]
    if first >= stop:
        return
    edges = {edge for each in bounds.values() for edge in each if first <= edge <= stop}
    edges |= set(range(-(-first // BLOCK_ENTRIES) * BLOCK_ENTRIES, stop, BLOCK_ENTRIES))
    cuts = sorted(edges)
    place = as_seen_anywhere(place)
    for at in range(0, len(cuts) - 1, CHUNK_BLOCKS):
        yield Chunk(place=place, cuts=tuple(cuts[at : at + CHUNK_BLOCKS + 1]))


def _compared(
    places: Sequence[Place], digests: dict[int, dict[tuple[int, int], bytes]]
) -> Iterator[Difference]:
    """Each place with those before it, until it was found different from one."""
    numbers = list(digests)
    parted: set[int] = set()
    for at, number in enumerate(numbers):
        for other in (each for each in numbers[:at] if each not in parted):
            ours, theirs = digests[other], digests[number]
            differing = [
                block for block in sorted(ours.keys() & theirs.keys()) if ours[block] != theirs[block]
            ]
            if differing:
                yield _first_difference(places[other], places[number], *differing[0])
                parted.add(number)
                break


def _first_difference(place: Place, other: Place, first: int, stop: int) -> Difference:
    try:
        ours, theirs = (_headers(each, first, stop) for each in (place, other))
    except (LedgerError, DirectoryDamaged, ProtocolViolation) as error:
        # An audit takes long: a member may be down by now, or have deleted them.
        what = f"entries {first} .. {stop - 1} differ, and cannot be read once more: {error}"
        return Difference(place=place.name, other=other.name, index=first, what=what)
    unequal = ours != theirs
    wrong = np.flatnonzero(unequal.any(axis=0))
    assert len(wrong), f"blocks {first} .. {stop} of {place.name} and {other.name} differ no more"
    at = int(wrong[0])
    assert HEADER_DTYPE.names is not None
    found_differences = [
        f"{name} is {int(a[0])} and {int(b[0])}"
        for name in HEADER_DTYPE.names
        for a, b in [(field_of(ours[:, at : at + 1], name), field_of(theirs[:, at : at + 1], name))]
        if int(a[0]) != int(b[0])
    ]
    return Difference(
        place=place.name, other=other.name, index=first + at, what="; ".join(found_differences)
    )


def _headers(place: Place, first: int, stop: int) -> UInt64Array:
    with closing(open_log(place)) as log:
        return np.concatenate([batch.words() for batch in log.batches(first, stop)], axis=1)
