from __future__ import annotations

from pathlib import Path

from benchmarks.contenders.marks import ARRIVED, SCHEDULED, Marker, Marks


def test_moments_of_several_writers_are_read_in_order(tmp_path: Path) -> None:
    one, other = Marker(str(tmp_path)), Marker(str(tmp_path))
    one.arrivals([(3.0, 2.5)])
    other.arrivals([(1.0, 0.5), (2.0, 1.5)])
    assert Marks(tmp_path).read(ARRIVED) == [(1.0, 0.5), (2.0, 1.5), (3.0, 2.5)]


def test_a_batch_counts_as_many_as_it_has(tmp_path: Path) -> None:
    Marker(str(tmp_path)).scheduled(500)
    assert Marks(tmp_path).count(SCHEDULED) == 500


def test_nothing_was_seen_before_anybody_wrote(tmp_path: Path) -> None:
    marks = Marks(tmp_path)
    assert (marks.count(ARRIVED), marks.read(ARRIVED)) == (0, [])


def test_a_record_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    Marker(str(tmp_path)).arrivals([(1.0, 0.5)])
    with (tmp_path / ARRIVED).open("ab") as file:
        file.write(b"half")
    assert Marks(tmp_path).read(ARRIVED) == [(1.0, 0.5)]
