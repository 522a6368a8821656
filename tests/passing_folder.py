"""A file system in user space that passes every request on to a folder: `passing_folder.py FOLDER
MOUNTPOINT`.

It stands for a network file system: the kernel calls it fuse, and when this process is stopped,
no request is answered. Says "ready" and runs until it is killed or unmounted. It knows what
recording and copying need, and one request at a time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

REQUEST = struct.Struct("<IIQQ16x")  # length, operation, serial, node
ATTRIBUTES = struct.Struct("<6Q10I")
READING = struct.Struct("<QQI20x")  # handle, offset, size; of a write alike
MAX_WRITE = 128 * 1024
SIZE_IS_SET = 1 << 3  # in a change of attributes
MS_NOSUID, MS_NODEV = 2, 4

NOT_ANSWERED = (2, 36, 42)  # forget, interrupt, batch forget


class PassingFolder:
    """Answers requests. Nodes are numbered as they are looked up; 1 is the folder itself."""

    def __init__(self, folder: Path) -> None:
        self._paths = {1: folder}
        self._nodes = {folder: 1}
        self._operations: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup, 3: self._attributes, 4: self._change, 9: self._make_folder,
            10: self._remove, 11: self._remove_folder, 12: self._rename, 14: self._open,
            15: self._read, 16: self._write, 17: self._space, 18: self._close, 20: self._sync,
            25: self._nothing, 26: self._begin, 27: self._nothing_open, 28: self._list,
            29: self._nothing, 35: self._create, 45: self._rename_with_flags,
        }  # fmt: skip

    def answer(self, request: bytes) -> bytes | None:
        _, operation, serial, node = REQUEST.unpack_from(request)
        if operation in NOT_ANSWERED:
            return None
        error, body = 0, b""
        try:
            body = self._operations[operation](node, request[REQUEST.size :])
        except KeyError:
            error = errno.ENOSYS
        except OSError as failed:
            error = failed.errno or errno.EIO
        return struct.pack("<IiQ", 16 + len(body), -error, serial) + body

    def _begin(self, node: int, body: bytes) -> bytes:
        major, _, read_ahead = struct.unpack_from("<III", body)
        return struct.pack("<4I2H2I", major, 31, read_ahead, 0, 16, 12, MAX_WRITE, 1) + bytes(36)

    def _child(self, node: int, name: bytes) -> Path:
        return self._paths[node] / os.fsdecode(name.split(b"\0")[0])

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body))

    def _entry(self, path: Path) -> bytes:
        status = path.lstat()
        node = self._nodes.setdefault(path, len(self._nodes) + 1)
        self._paths[node] = path
        return struct.pack("<4Q2I", node, 0, 0, 0, 0, 0) + self._packed(status, node)

    def _packed(self, status: os.stat_result, node: int) -> bytes:
        return ATTRIBUTES.pack(
            node, status.st_size, status.st_blocks, int(status.st_atime), int(status.st_mtime),
            int(status.st_ctime), 0, 0, 0, status.st_mode, status.st_nlink, status.st_uid,
            status.st_gid, 0, 4096, 0,
        )  # fmt: skip

    def _attributes(self, node: int, body: bytes) -> bytes:
        return bytes(16) + self._packed(self._paths[node].lstat(), node)

    def _change(self, node: int, body: bytes) -> bytes:
        changed, size = struct.unpack_from("<I12xQ", body)
        if changed & SIZE_IS_SET:
            os.truncate(self._paths[node], size)
        return self._attributes(node, body)

    def _make_folder(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[8:])
        path.mkdir()
        return self._entry(path)

    def _remove(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body)
        path.unlink()
        self._nodes.pop(path, None)
        return b""

    def _remove_folder(self, node: int, body: bytes) -> bytes:
        self._child(node, body).rmdir()
        return b""

    def _rename(self, node: int, body: bytes, names_at: int = 8) -> bytes:
        old, new = body[names_at:].split(b"\0")[:2]
        source = self._child(node, old)
        target = self._child(struct.unpack_from("<Q", body)[0], new)
        source.rename(target)
        if (moved := self._nodes.pop(source, None)) is not None:
            self._nodes[target] = moved
            self._paths[moved] = target
        return b""

    def _rename_with_flags(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 16)

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        return struct.pack("<QII", os.open(self._paths[node], flags & os.O_ACCMODE), 0, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[16:])
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        return self._entry(path) + struct.pack("<QII", handle, 0, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = READING.unpack_from(body)
        return os.pread(handle, size, offset)

    def _write(self, node: int, body: bytes) -> bytes:
        handle, offset, size = READING.unpack_from(body)
        written = os.pwrite(handle, body[READING.size : READING.size + size], offset)
        return struct.pack("<II", written, 0)

    def _close(self, node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _sync(self, node: int, body: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def _list(self, node: int, body: bytes) -> bytes:
        _, offset, size = READING.unpack_from(body)
        found = b""
        for index, name in enumerate(sorted(os.listdir(self._paths[node])), 1):
            raw = os.fsencode(name)
            entry = struct.pack("<QQII", index, index, len(raw), 0) + raw
            entry += bytes(-len(entry) % 8)
            if index > offset and len(found) + len(entry) <= size:
                found += entry
        return found

    def _space(self, node: int, body: bytes) -> bytes:
        return struct.pack("<5Q4I24x", 2**20, 2**20, 2**20, 2**20, 2**20, 4096, 255, 4096, 0)

    def _nothing(self, node: int, body: bytes) -> bytes:
        return b""

    def _nothing_open(self, node: int, body: bytes) -> bytes:
        return bytes(16)


def mount(device: int, mountpoint: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,subtype=passing"
    flags = MS_NOSUID | MS_NODEV
    if libc.mount(b"passing", mountpoint.encode(), b"fuse", flags, options.encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount {mountpoint}")


def main(folder: str, mountpoint: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    mount(device, mountpoint)
    served = PassingFolder(Path(folder))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        try:
            request = os.read(device, MAX_WRITE + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            if error.errno in (errno.ENOENT, errno.EINTR):  # the request was taken back
                continue
            raise
        if (response := served.answer(request)) is not None:
            try:
                os.write(device, response)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise


if __name__ == "__main__":
    main(*sys.argv[1:])
