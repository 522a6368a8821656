"""Which folders are on a network file system, and how a record comes home from the local one."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from ddpdoctor.errors import NotARun
from ddpdoctor.localrecords import read_local_records, where_they_lie
from ddpdoctor.recorder.placement import COPY_S, Placement, copy_in_time, is_remote
from ddpdoctor.tracefile import load_run

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw,nosuid - proc proc rw
24 22 0:40 / /home rw,relatime shared:9 - nfs4 server:/export/home rw,vers=4.2
25 24 0:41 / /home/anna/scratch rw - ext4 /dev/nvme0n1 rw
26 22 0:42 / /mnt/two\040words rw - fuse.sshfs user@host:/ rw,user_id=0
27 22 0:43 / /windows rw - fuseblk /dev/sdb1 rw
28 22 0:44 / /data rw - ext4 /dev/sdc1 rw
29 28 0:45 / /data rw - lustre 10.0.0.1@tcp:/data rw
30 22 0:46 / /container rw - overlay overlay rw,lowerdir=/nfs
31 22 0:47 / /bad
"""


@pytest.mark.parametrize(
    ("folder", "remote"),
    [
        ("/root/runs", False),
        ("/home/anna/runs", True),
        ("/home", True),
        ("/homestead", False),
        ("/home/anna/scratch/runs", False),
        ("/mnt/two words/runs", True),
        ("/windows/runs", False),  # NTFS on a local disk
        ("/data/runs", True),  # a later mount covers the earlier one
        ("/container/runs", False),
        ("/bad/runs", False),
    ],
)
def test_a_folder_is_remote_by_what_is_mounted_there(folder: str, remote: bool) -> None:
    assert is_remote(Path(folder), MOUNTS) is remote


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a rank file belongs; it is to be written elsewhere."""
    monkeypatch.setenv("DDPDOCTOR_LOCAL", "1")
    folder = tmp_path / "run" / "attempt-0"
    folder.mkdir(parents=True)
    return folder / "rank00003.ddt"


def written(home: Path) -> Placement:
    placement = Placement(home, 3)
    placement.path.write_bytes(b"records")
    placement.path.with_suffix(".facts.jsonl").write_bytes(b"facts")
    return placement


def test_a_record_comes_home_and_leaves_nothing_behind(home: Path) -> None:
    placement = written(home)
    assert not home.exists()
    assert placement.path.parent.stat().st_mode & 0o777 == 0o700

    placement.bring_home()

    assert home.read_bytes() == b"records"
    assert sorted(path.name for path in home.parent.iterdir()) == [
        "rank00003.ddt", "rank00003.facts.jsonl",
    ]  # fmt: skip
    assert not placement.path.parent.exists()


def test_until_then_the_run_folder_says_where_it_is(home: Path) -> None:
    placement = written(home)

    with pytest.raises(NotARun, match=str(placement.path)):
        load_run(home.parents[1])


@pytest.mark.parametrize(
    "note",
    ["", "[]", "{}", "\0", '{"rank": -1, "host": "h", "path": "p"}',
     '{"rank": 1, "host": "h", "path": "' + "p" * 5000 + '"}', "[" * 10_000],
)  # fmt: skip
def test_a_note_that_cannot_be_true_is_passed_over(note: str, home: Path) -> None:
    placement = written(home)
    home.with_name("rank00001.local.json").write_text(note)

    assert [record.rank for record in read_local_records(home.parent)] == [3]
    assert "(rank 1)" not in where_they_lie(home.parent)
    assert str(placement.path) in where_they_lie(home.parent)
    assert where_they_lie(home.parent, present={3}) == ""


def test_what_cannot_come_home_is_kept_and_one_warning_says_where(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    placement = written(home)
    home.parent.rename(home.parent.with_name("moved"))

    with caplog.at_level(logging.WARNING):
        placement.bring_home()

    (warning,) = caplog.messages
    assert str(placement.path.parent) in warning
    assert "No such file or directory" in warning
    assert placement.path.read_bytes() == b"records"


def test_a_copy_that_takes_too_long_leaves_no_half_of_it(home: Path) -> None:
    placement = written(home)

    with pytest.raises(TimeoutError):
        copy_in_time(placement.path, home, time.monotonic() - COPY_S)

    assert not home.exists()
    assert not list(home.parent.glob("*.tmp"))


def test_on_a_local_disk_a_record_is_written_where_it_belongs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPDOCTOR_LOCAL", "0")
    placement = Placement(home, 3)

    placement.bring_home()

    assert placement.path == home
    assert list(home.parent.iterdir()) == []
