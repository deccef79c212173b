"""The library file, and making it known to onnxruntime."""

from __future__ import annotations

import gc
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import custom_ort
from custom_ort import library
from ir_ops.errors import KvfuseError
from ir_ops.ops import OPS
from tests.custom_ort import one_node
from tests.custom_ort.calls import NAME, random_call


def test_one_exported_symbol_and_no_onnxruntime() -> None:
    """Two libraries must not meet each other's symbols, and the library must load before any onnxruntime is chosen."""
    path = str(custom_ort.get_library_path())
    symbols = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in symbols.splitlines()] == ["RegisterCustomOps"]
    dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert "onnxruntime" not in dynamic


def test_registering_twice_and_on_several_options() -> None:
    """onnxruntime fails at session creation when a library is registered twice: register() remembers."""
    call = random_call(np.random.default_rng(1))
    proto = one_node.model(NAME, one_node.types_of(call.inputs), call.attrs)
    for _ in range(3):
        options = onnxruntime.SessionOptions()
        for _ in range(3):
            custom_ort.register(options)
        first = custom_ort.session(proto, sess_options=options)
        second = custom_ort.session(proto.SerializeToString(), sess_options=options)
        assert custom_ort.run(first, call.inputs).keys() == custom_ort.run(second, call.inputs).keys()


def test_session_outlives_its_options() -> None:
    call = random_call(np.random.default_rng(2))
    options = onnxruntime.SessionOptions()
    session = custom_ort.session(one_node.model(NAME, one_node.types_of(call.inputs), call.attrs), sess_options=options)
    del options
    gc.collect()
    assert set(custom_ort.run(session, call.inputs)) == {output.onnx_name for output in OPS[NAME].outputs}


def test_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVFUSE_LIBRARY", raising=False)
    monkeypatch.setattr(custom_ort, "__path__", [str(tmp_path)])
    with pytest.raises(KvfuseError, match=r"the custom-op library is not built; found no lib.* in .*pip install"):
        custom_ort.get_library_path()


def test_library_in_the_second_folder_of_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An editable install has its Python files in one folder and its built library in another."""
    path = custom_ort.get_library_path()
    name = library._NAMES.get("linux", "libkvfuse_ort.so")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / name).symlink_to(path)
    monkeypatch.delenv("KVFUSE_LIBRARY", raising=False)
    monkeypatch.setattr(custom_ort, "__path__", [str(tmp_path), str(tmp_path / "site")])
    assert custom_ort.get_library_path() == tmp_path / "site" / name


def test_library_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = custom_ort.get_library_path()
    monkeypatch.setenv("KVFUSE_LIBRARY", str(path))
    assert custom_ort.get_library_path() == path
    monkeypatch.setenv("KVFUSE_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(KvfuseError, match=r"KVFUSE_LIBRARY names no file; found .*none\.so"):
        custom_ort.get_library_path()


def test_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_bytes(b"not a library")
    monkeypatch.setenv("KVFUSE_LIBRARY", str(tmp_path / "broken.so"))
    with pytest.raises(KvfuseError, match=r"broken\.so: the custom-op library does not load; found .*"):
        custom_ort.register(onnxruntime.SessionOptions())


def test_old_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "1.19.2")
    with pytest.raises(KvfuseError, match=r"onnxruntime is too old; found 1\.19\.2, wanted 1\.20 or newer"):
        custom_ort.register(onnxruntime.SessionOptions())


def test_unknown_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFUSE_ISA", "mmx")
    with pytest.raises(KvfuseError, match="KVFUSE_ISA=mmx cannot run here; wanted portable"):
        custom_ort.register(onnxruntime.SessionOptions())


def test_importing_the_package_does_not_import_onnxruntime() -> None:
    code = "import sys, custom_ort; sys.exit('onnxruntime' in sys.modules)"
    root = Path(custom_ort.__file__).parents[1]
    assert subprocess.run([__import__("sys").executable, "-c", code], cwd=root, check=False).returncode == 0
