"""Metadata files in the object store, read and written as every object is: durable, whole, never over another one.

PyIceberg makes a `FileIO` from a class name and the catalog's properties; so the store travels in those. Data files
go PyArrow's way, and so does what a person has told a table to keep outside of the object store.

Must stay true: a file that a catalog names is whole and survives a power cut. A file that no catalog names does not
count, so an unclear write of one is a failure like any other: nothing has happened.
"""

import io
from types import TracebackType
from typing import Any

from pyiceberg.io import InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO

from headrace.errors import Exists, Missing, OutcomeUnknown, Retryable
from headrace.model.ids import ObjectKey
from headrace.objects.blocking import BlockingObjects
from headrace.tables.iceberg.locations import ObjectsRoot

CLASS_NAME = "headrace.tables.iceberg.file_io.ObjectFileIO"
OBJECTS = "headrace.objects"
ROOT = "headrace.objects-root"
METADATA_SUFFIXES = (".avro", ".json")


class ObjectFileIO(PyArrowFileIO):
    """PyIceberg's way to the object store."""

    def new_input(self, location: str) -> InputFile:  # type: ignore[override]
        key = self._key(location)
        return super().new_input(location) if key is None else _ObjectInput(location, key, self._objects)

    def new_output(self, location: str) -> OutputFile:  # type: ignore[override]
        key = self._key(location)
        return super().new_output(location) if key is None else _ObjectOutput(location, key, self._objects)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        name = location if isinstance(location, str) else location.location
        key = self._key(name)
        if key is None:
            super().delete(name)
        else:
            self._objects.delete(key)

    @property
    def _objects(self) -> BlockingObjects:
        properties: dict[str, Any] = self.properties
        objects: BlockingObjects = properties[OBJECTS]
        return objects

    def _key(self, location: str) -> ObjectKey | None:
        properties: dict[str, Any] = self.properties
        root: ObjectsRoot = properties[ROOT]
        key = root.key_of(location) if location.endswith(METADATA_SUFFIXES) else None
        return None if key is None else ObjectKey(key)


class _ObjectInput(InputFile):
    """An object to be read, all of it at once: metadata is small."""

    def __init__(self, location: str, key: ObjectKey, objects: BlockingObjects) -> None:
        super().__init__(location)
        self._key = key
        self._objects = objects

    def __len__(self) -> int:
        return self._objects.size_bytes(self._key)

    def exists(self) -> bool:
        return _exists(self._objects, self._key)

    def open(self, seekable: bool = True) -> InputStream:
        try:
            return io.BytesIO(self._objects.read(self._key))
        except Missing as error:
            raise FileNotFoundError(str(error)) from error


class _ObjectOutput(OutputFile):
    """An object that does not exist until its stream is closed."""

    def __init__(self, location: str, key: ObjectKey, objects: BlockingObjects) -> None:
        super().__init__(location)
        self._key = key
        self._objects = objects
        self._stream: _ObjectStream | None = None

    def __len__(self) -> int:
        return self._objects.size_bytes(self._key) if self._stream is None else self._stream.size_bytes

    def exists(self) -> bool:
        return _exists(self._objects, self._key)

    def to_input_file(self) -> InputFile:
        return _ObjectInput(self.location, self._key, self._objects)

    def create(self, overwrite: bool = False) -> OutputStream:
        # Names of metadata files hold a random part, so nobody who asks to overwrite means it.
        self._stream = _ObjectStream(self._key, self._objects)
        return self._stream


class _ObjectStream(io.BytesIO):
    """Bytes in memory until they are closed: a manifest or a table's metadata, some hundred kilobytes."""

    def __init__(self, key: ObjectKey, objects: BlockingObjects) -> None:
        super().__init__()
        self._key = key
        self._objects = objects
        self._failed = False
        self.size_bytes = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._failed = kind is not None
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        content = self.getvalue()
        self.size_bytes = len(content)
        super().close()
        if self._failed:
            return
        try:
            self._objects.write_new(self._key, content)
        except Exists as error:
            raise FileExistsError(f"{self._key} is there already") from error
        except OutcomeUnknown as error:
            raise Retryable(f"the metadata file {self._key} may not have been written: {error}") from error


def _exists(objects: BlockingObjects, key: ObjectKey) -> bool:
    try:
        objects.size_bytes(key)
    except Missing:
        return False
    return True
