"""Waking up when files change, and not when they do not."""

from __future__ import annotations

import os
import select
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.linux.inotify import Spares, Watch

linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


def changed(watch: Watch, seconds: float = 5.0) -> bool:
    """Whether the watch wakes its caller; drains it like a caller would."""
    fd = watch.fileno()
    assert fd is not None
    ready = bool(select.select([fd], [], [], seconds)[0])
    watch.drain()
    assert not select.select([fd], [], [], 0)[0], "draining left something behind"
    return ready


def quiet(watch: Watch) -> bool:
    return not changed(watch, 0)


def append(path: Path, data: bytes = b"x") -> None:
    with path.open("ab") as file:
        file.write(data)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@linux
def test_a_file_that_grows_wakes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path)
    with Watch([str(path)]) as watch:
        assert quiet(watch)
        for _ in range(3):
            append(path)
            assert changed(watch)
            assert quiet(watch)


@linux
def test_each_of_several_files_wakes(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(20)]
    for path in paths:
        append(path)
    with Watch([str(path) for path in paths]) as watch:
        for path in paths:
            assert quiet(watch)
            append(path)
            assert changed(watch)


@linux
def test_other_files_beside_it_do_not_wake(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path)
    with Watch([str(path)]) as watch:
        append(tmp_path / "other")
        assert quiet(watch)


@linux
def test_a_file_that_does_not_exist_yet_wakes_when_it_comes_and_when_it_grows(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    with Watch([str(path)]) as watch:
        assert quiet(watch)
        append(path, b"")
        assert changed(watch)
        append(path)
        assert changed(watch)
        append(tmp_path / "other")
        assert quiet(watch), "the directory is still watched though the file has come"


@linux
def test_a_file_whose_directories_do_not_exist_yet_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "log"
    with Watch([str(path)]) as watch:
        (tmp_path / "a").mkdir()
        assert changed(watch)
        (tmp_path / "a" / "b").mkdir()
        assert changed(watch)
        append(path)
        assert changed(watch)
        append(path)
        assert changed(watch)


@linux
def test_directories_that_come_all_at_once_are_found(tmp_path: Path) -> None:
    """No event tells of what was made before its directory was watched."""
    path = tmp_path / "a" / "b" / "log"
    with Watch([str(path)]) as watch:
        path.parent.mkdir(parents=True)
        append(path)
        assert changed(watch)
        append(path)
        assert changed(watch)


@linux
def test_a_file_renamed_into_place_is_followed(tmp_path: Path) -> None:
    """Records are replaced this way at every transition."""
    path, new = tmp_path / "record", tmp_path / "record.tmp"
    append(path)
    with Watch([str(path)]) as watch:
        for _ in range(3):
            append(new)
            assert quiet(watch)
            new.rename(path)
            assert changed(watch)
            append(path)
            assert changed(watch)


@linux
def test_a_rotated_file_is_followed_by_its_name(tmp_path: Path) -> None:
    path, old = tmp_path / "log", tmp_path / "log.old"
    append(path)
    with Watch([str(path)]) as watch:
        for _ in range(3):
            path.rename(old)
            assert changed(watch)
            append(path, b"")
            assert changed(watch)
            append(path)
            assert changed(watch)
            append(old)
            assert quiet(watch), "the old file is still watched"


@linux
def test_a_file_removed_while_somebody_holds_it_open_is_followed_by_its_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    append(path)
    with path.open("rb"), Watch([str(path)]) as watch:
        path.unlink()
        assert changed(watch)
        append(path)
        assert changed(watch)
        append(path)
        assert changed(watch)


@linux
def test_a_look_wakes(tmp_path: Path) -> None:
    path = tmp_path / "record"
    append(path)
    with Watch([str(path)]) as watch:
        os.utime(path)
        assert changed(watch)


@linux
def test_a_directory_wakes_when_something_in_it_comes_or_changes(tmp_path: Path) -> None:
    new = tmp_path / "new"
    with Watch([str(tmp_path)]) as watch:
        assert quiet(watch)
        append(new)
        assert changed(watch)
        append(new)
        assert changed(watch)
        new.rename(tmp_path / "renamed")
        assert changed(watch)


@linux
def test_a_directory_and_a_file_awaited_in_it_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    append(other)
    with Watch([str(path), str(tmp_path)]) as watch:
        append(other)
        assert changed(watch)
        append(path)
        assert changed(watch)
        append(other)
        assert changed(watch), "the directory was let go with the file that came"


@linux
def test_a_path_through_a_symlinked_directory_is_watched(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Watch([str(tmp_path / "link" / "log")]) as watch:
        append(tmp_path / "real" / "log")
        assert changed(watch)
        append(tmp_path / "real" / "log")
        assert changed(watch)


@linux
def test_a_path_through_a_dangling_symlink_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    with Watch([str(tmp_path / "link" / "log")]) as watch:
        assert quiet(watch)


@linux
def test_more_events_than_the_kernel_queues_are_survived(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip("the queue is too long to fill quickly")
    path = tmp_path / "log"
    others = [tmp_path / "a", tmp_path / "b"]
    for each in (path, *others):
        append(each)
    with Watch([str(path), *map(str, others)]) as watch:
        # Two files in turn: the same event twice in a row is queued once.
        for number in range(limit + 10):
            os.utime(others[number % 2])
        path.rename(tmp_path / "log.old")
        append(path)
        assert changed(watch)
        assert quiet(watch)
        append(path)
        assert changed(watch), "the event that was dropped was the one that mattered"


@linux
def test_closing_gives_the_descriptor_back(tmp_path: Path) -> None:
    before = descriptors()
    watch = Watch([str(tmp_path)])
    assert watch.fileno() is not None
    assert not os.get_inheritable(watch.fileno() or 0)
    watch.close()
    watch.close()
    watch.drain()
    assert watch.fileno() is None
    assert descriptors() == before


@linux
def test_without_descriptors_to_be_had_the_caller_polls(tmp_path: Path) -> None:
    import resource

    Watch([str(tmp_path)]).close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, hard))
        watch = Watch([str(tmp_path)])
        assert watch.fileno() is None
        watch.drain()
        watch.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


@linux
def test_when_the_kernel_allows_no_more_watches_the_caller_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    monkeypatch.setattr(Watch, "_watch", lambda *_: -1)
    watch = Watch([str(tmp_path)])
    assert watch.fileno() is None
    assert descriptors() == before


def test_elsewhere_than_on_linux_the_caller_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with Watch([str(tmp_path)]) as watch:
        assert watch.fileno() is None
        watch.drain()
        assert "polled" in repr(watch)


@linux
def test_a_descriptor_is_used_again_and_hears_of_the_new_files_only(tmp_path: Path) -> None:
    """To close one takes the kernel long; in the end none is left."""
    before = descriptors()
    paths = [tmp_path / str(number) for number in range(3)]
    for path in paths:
        append(path)
    spares = Spares()
    used = set()
    for path, other in [*pairwise(paths), (paths[2], tmp_path / "not there")]:
        with Watch([str(path)], spares) as watch, Watch([str(other)], spares) as second:
            used |= {watch.fileno(), second.fileno()}
            watch.drain()
            second.drain()
            append(path)
            assert changed(watch)
            assert quiet(second)
            append(other)
            assert changed(second)
            assert quiet(watch)
            append(path)  # and nobody takes note
    assert len(used) == 2
    spares.close()
    with Watch([str(paths[0])], spares):
        pass
    assert descriptors() == before


@linux
def test_descriptors_of_a_parent_are_not_used_by_its_child(tmp_path: Path) -> None:
    """Each would take what the other should hear of."""
    spares = Spares()
    with Watch([str(tmp_path)], spares) as watch:
        kept = watch.fileno()
    pid = os.fork()
    if pid == 0:
        with Watch([str(tmp_path)], spares) as watch:
            os._exit(watch.fileno() == kept)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    spares.close()
