"""Importance matrices of llama.cpp's own formats, written here by their definition, and ours in its quantizer."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from slm.data.errors import UserError
from slm.export.config import CalibrationConfig, ExportConfig, ProofConfig
from slm.export.imatrix import ImportanceMatrix
from slm.export.imatrix_file import check_names, merge, read_imatrix, statistics, statistics_line
from slm.export.pipeline import export
from slm.export.quantize import quantize_file
from slm.llama.gguf_check import read_header
from tests.helpers import tiny_checkpoint as tiny

RNG = np.random.default_rng(5)


def matrix(rows: int = 96, datasets: tuple[str, ...] = ("a.txt",), **changes: int) -> ImportanceMatrix:
    widths = {"blk.0.attn_q.weight": 8, "blk.0.ffn_down.weight": 12} | changes
    sums = {name: (RNG.random(width) * rows).astype(np.float32).astype(np.float64) for name, width in widths.items()}
    return ImportanceMatrix(sums=sums, n_rows=rows, chunk_size=32, n_chunks=rows // 32, datasets=list(datasets))


def write_dat(path: Path, means: dict[str, np.ndarray], calls: int, *, tail: bool = True) -> Path:
    """The older format, as llama-imatrix writes it."""
    parts = [struct.pack("<i", len(means))]
    for name, values in means.items():
        raw = name.encode()
        parts += [struct.pack("<i", len(raw)), raw, struct.pack("<ii", calls, len(values))]
        parts.append((values.astype(np.float32) * np.float32(calls)).tobytes())
    if tail:
        parts += [struct.pack("<ii", calls, 5), b"b.txt"]
    path.write_bytes(b"".join(parts))
    return path


def write_llama_gguf(path: Path, sums: dict[str, np.ndarray], rows: int) -> Path:
    """The GGUF of llama-imatrix: sums and counts are matrices of one row."""
    writer = gguf.GGUFWriter(path, arch="")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["wiki.train.raw", "code.txt"])
    writer.add_uint32("imatrix.chunk_count", 3)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, values in sums.items():
        writer.add_tensor(f"{name}.in_sum2", values.astype(np.float32)[None])
        writer.add_tensor(f"{name}.counts", np.array([[rows]], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_what_is_written_is_read_back_to_the_bit(tmp_path):
    ours = matrix(datasets=("a.txt", "b.txt"))
    ours.write(tmp_path / "imatrix.gguf")
    back = read_imatrix(tmp_path / "imatrix.gguf")
    assert (back.n_rows, back.chunk_size, back.n_chunks, back.datasets) == (96, 32, 3, ["a.txt", "b.txt"])
    for name, means in ours.means().items():
        assert means.dtype == np.float32
        np.testing.assert_array_equal(back.means()[name], means)


def test_llama_imatrix_gguf(tmp_path):
    ours = matrix()
    back = read_imatrix(write_llama_gguf(tmp_path / "theirs.gguf", ours.sums, 1536))
    assert (back.n_rows, back.n_chunks, back.chunk_size) == (1536, 3, 512)
    assert back.datasets == ["wiki.train.raw", "code.txt"]
    for name, sums in ours.sums.items():
        np.testing.assert_array_equal(back.means()[name], sums.astype(np.float32) / np.float32(1536))


@pytest.mark.parametrize("tail", [True, False])
def test_the_older_dat(tmp_path, tail):
    means = matrix().means()
    back = read_imatrix(write_dat(tmp_path / "old.dat", means, calls=7, tail=tail))
    assert back.datasets == (["b.txt"] if tail else ["old.dat"])
    assert (back.n_chunks, back.n_rows) == (7, 7 * 512)
    for name, values in means.items():
        # llama-quantize divides what stands there by the calls.
        np.testing.assert_array_equal(back.means()[name], values * np.float32(7) / np.float32(7))


def test_merging_is_one_pass_over_both_texts(tmp_path):
    one, two = matrix(rows=64), matrix(rows=320, datasets=("c.txt",))
    both = merge([one, two])
    assert (both.n_rows, both.n_chunks, both.dataset) == (384, 12, "a.txt, c.txt")
    for name, means in both.means().items():
        expected = (one.sums[name] + two.sums[name]) / 384
        np.testing.assert_allclose(means, expected, rtol=1e-6)
    both.write(tmp_path / "both.gguf")
    assert read_imatrix(tmp_path / "both.gguf").datasets == ["a.txt", "c.txt"]
    with pytest.raises(UserError, match=r"of different models: blk.0.attn_q.weight has 8 columns in one and 9"):
        merge([one, matrix(**{"blk.0.attn_q.weight": 9})])


def test_statistics():
    even = ImportanceMatrix(
        sums={"a": np.full(10, 20.0), "b": np.array([40.0] + [0.0] * 9)},
        n_rows=10, chunk_size=5, n_chunks=2, datasets=["x"],
    )  # fmt: skip
    a, b = statistics(even)
    assert (a["mean"], a["largest"], a["dead"], a["columns"], a["rows"]) == (2.0, 2.0, 0.0, 10, 10)
    assert a["effective"] == pytest.approx(1)
    assert (b["mean"], b["largest"], b["dead"]) == (pytest.approx(0.4), 4.0, 0.9)
    assert b["effective"] == pytest.approx(0.1)
    assert "2 matrices over 10 positions" in statistics_line(even)
    assert "(least: b, 10%); columns that are always 0 in 1" in statistics_line(even)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends, or is damaged"),
        (b"\xff\xff\xff\xff", "neither GGUF nor"),
        (struct.pack("<iii", 1, 4, 9), "ends, or is damaged, at byte 12"),
        (struct.pack("<ii", 1, -5) + bytes(40), "ends, or is damaged"),
        (struct.pack("<ii1sii", 1, 1, b"x", 1, 1) + np.float32(np.nan).tobytes(), "negative or non-finite"),
        (b"GGUF" + bytes(60), "GGUF version 0"),
    ],
)
def test_other_files_are_one_line(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_imatrix(path)
    assert "\n" not in str(error.value)


def test_a_model_is_no_importance_matrix_and_another_models_is_refused(exported):
    root, record = exported
    model = root / "gguf" / record["files"][0]["file"]
    with pytest.raises(UserError, match="is a GGUF file but no importance matrix"):
        read_imatrix(model)
    tensors = read_header(model).tensors
    check_names(read_imatrix(root / "gguf" / "imatrix.gguf"), tensors)
    with pytest.raises(UserError, match=r"blk.0.attn_q.weight has 8 columns there and 256 here"):
        check_names(matrix(), tensors)
    with pytest.raises(UserError, match="none of its 1 matrices is in this one"):
        check_names(
            ImportanceMatrix(sums={"x": np.ones(3)}, n_rows=1, chunk_size=1, n_chunks=1, datasets=["d"]), tensors
        )


def test_a_file_from_elsewhere_gives_the_same_bytes_as_a_measurement(exported, tmp_path):
    """An export with the importance matrix read back from its file, in all formats, writes the same q4_k_m."""
    root, record = exported
    source, expected = (root / "gguf" / each["file"] for each in record["files"])
    measured = read_imatrix(root / "gguf" / "imatrix.gguf")
    theirs = write_llama_gguf(tmp_path / "theirs.gguf", measured.sums, measured.n_rows)
    for path in (root / "gguf" / "imatrix.gguf", theirs):
        quantize_file(source, tmp_path / "out.gguf", "q4_k_m", read_imatrix(path).means(), 1)
        assert (tmp_path / "out.gguf").read_bytes() == expected.read_bytes()
    old = write_dat(tmp_path / "old.dat", measured.means(), calls=4)  # a power of two loses no bit
    calibration = CalibrationConfig(files=[old])
    out = tmp_path / "again"
    again = export(
        ExportConfig(run=root, threads=1, quant=["q4_k_m"], out=out, license="apache-2.0", calibration=calibration)
    )
    assert again["imatrix"]["dataset"] == "b.txt"
    assert len(again["imatrix"]["statistics"]) == 14
    assert (tmp_path / "again" / again["files"][0]["file"]).read_bytes() == expected.read_bytes()


def test_several_texts_are_measured_and_merged(tmp_path):
    root = tiny.run(tmp_path / "run", n_layers=1)
    (tmp_path / "more.txt").write_text(tiny.text(20_000, seed=9), encoding="utf-8")
    calibration = CalibrationConfig(chunks=2, n_ctx=64, more_texts=[tmp_path / "more.txt"])
    proof = ProofConfig(chunks=1, n_ctx=64, kl_tokens=64)
    record = export(ExportConfig(run=root, threads=1, quant=["q4_0"], calibration=calibration, proof=proof))
    assert record["imatrix"]["dataset"] == "calibration.txt, more.txt"
    assert {each["rows"] for each in record["imatrix"]["statistics"]} == {4 * 64}
    stored = read_imatrix(root / "gguf" / "imatrix.gguf")
    assert (stored.datasets, stored.n_chunks) == (["calibration.txt", "more.txt"], 4)
