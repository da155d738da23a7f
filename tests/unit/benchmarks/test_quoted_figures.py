"""The figures that documents quote are the recorded ones. `quotes` yields each sentence with its figures, and
WITHOUT_FILE has numbers that no benchmark records. Any other number in a document fails a test."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import geometric_mean

import pytest

from benchmarks.report.summary import BUSY
from benchmarks.results import figures
from benchmarks.results.figures import Figure, Results
from benchmarks.results.metrics import BESIDE_BUSY

ROOT = Path(__file__).parents[3]
DOCUMENTS = {
    path.name: path
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/devices").glob("*.md"))
}
NETWORKS = (
    *("resnet18", "mobilenet_v2", "resnet50", "efficientnet_b0", "convnext_t", "dcgan", "resnet3d_18"),
    *("bert_base", "gpt2", "vit_b16"),
)
AVX512, AVX2, SSE42 = "networks", "networks_avx2", "networks_sse42"
# TVM's untuned build of 3D-ResNet-18 takes minutes a run.
SSE42_NETWORKS = tuple(network for network in NETWORKS if network != "resnet3d_18")
PEER = "the fastest peer"
NO_MODEL = ("no learned model", "no analytic model")
# A number that looks like a measurement: 1.18, 48x, 98.8%, 17 MB, 1,047 trials a second.
NUMBER = re.compile(
    r"(?<![\w./-])\d[\d,]*(?:\.\d+)?"
    r"(?:x\b|%| (?:ms|µs|GFLOP/s|MB|kB|GB|mJ|times|(?:offered )?trials a second)\b)"
    r"|(?<![\w./-])\d+\.\d+(?![\w.])"
)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
# Numbers that aren't figures of a benchmark's file: versions, settings and aims; what was measured by hand.
WITHOUT_FILE = {
    "README.md": ("Python 3.11", "License 2.0"),
    "algorithm.md": ("4.1", "4.2", "5.1", "5.2", "6.1", "6.2"),  # the paper's sections
    "benchmarks.md": ("latency within 3%", "instead of 1.5", "Python 3.11"),
    "gpu-host.md": (
        *("driver 580.159", "CUDA 13.0", "PyTorch 2.11", "within 1% of", "capability 8.0", "capability 7.5"),
        "ResNet-18 1.239 ms (float32), 0.449 (TF32), 0.355 (float16)",
        "ResNet-18 0.498 ms",
    ),
    "jetson.md": ("Ubuntu 22.04", "3.11"),
    "models.md": ("PyTorch 2.8",),
    "operate.md": ("beyond 3%", "16 times the size"),
    "security.md": ("Linux 5.13", "Ubuntu 24.04"),
    "tutorial.md": ("Python 3.11",),
    "tvm.md": ("1.98 times as long", "2.85 times"),
    "worker.md": ("Python 3.11",),
}


@dataclass(frozen=True)
class Quote:
    """A sentence of a document. Each format field is a recorded value."""

    document: str
    sentence: str
    values: tuple[float, ...]

    @property
    def text(self) -> str:
        return self.sentence.format(*self.values)


@cache
def results(file: str) -> Results:
    return figures.read(ROOT / f"docs/benchmarks/{file}.json")


def figure(file: str, name: str) -> Figure:
    (found,) = (one for one in results(file).figures if one.name == name)
    return found


def value(file: str, name: str) -> float:
    return figure(file, name).value


def ratios(files: str, peer: str, networks: Sequence[str] = NETWORKS) -> list[float]:
    """Return how many times as fast as the peer tunefarm's libraries are, by network."""
    names = {network: f"{network}: latency relative to {peer}" for network in networks}
    return [
        1 / one.value
        for network, name in names.items()
        for one in results(f"{files}_{network}").figures
        if one.name == name
    ]


def compiled(file: str, condition: str) -> float:
    """Return the mean latency relative to ONNX Runtime of six networks in a file of `--compile`."""
    return value(file, f"geometric mean of 6 networks: latency relative to ONNX Runtime, {condition}")


def noted(file: str, name: str, pattern: str) -> float:
    """Return a number in a figure's note."""
    found = re.search(pattern, figure(file, name).note)
    assert found is not None, figure(file, name).note
    return float(found[1])


def quotes() -> Iterator[Quote]:
    fastest = [geometric_mean(ratios(files, PEER)) for files in (AVX512, AVX2)]
    unseen = "native, geometric mean of {} layers: {}speed-up over MetaSchedule, {}"
    yield Quote(
        "README.md",
        "tunefarm is {:.2f}x faster than the fastest other runtime with AVX-512, and {:.2f}x with AVX2",
        (*fastest,),
    )
    yield Quote(
        "README.md",
        "kernels for 24 unseen layers are {:.2f}x faster than MetaSchedule's (AVX-512)",
        (value("unseen", unseen.format(24, "", "after 64 trials")),),
    )
    yield Quote(
        "README.md",
        "MetaSchedule's 64-trial result {:.0f}x sooner on 23 of the layers",
        (value("unseen", unseen.format(23, "tuning ", "time to reach its 64-trial result")),),
    )
    size = value("runtime", "tunefarm-runtime beside NumPy: installed size")
    yield Quote("README.md", "takes {:.0f} MB beside NumPy", (size,))
    yield Quote("when.md", "running it takes {:.0f} MB", (size,))
    yield Quote("runtime.md", "{:.0f} MB installed beside NumPy", (size,))
    bundle = value("runtime", "bundle for C: size of the libraries")
    yield Quote("runtime.md", "the runtime libraries ({:.0f} MB)", (bundle,))
    yield from _of_algorithm()
    yield from _of_when()
    yield from _of_benchmarks()
    onnx = "all but text, sequence, optional, random and training operators: right"
    yield Quote(
        "models.md",
        "{:.1f}% of ONNX's node tests are right, and none is wrong; TVM's importer passes {:.1f}%",
        (value("coverage", onnx), noted("coverage", onnx, r"importer: ([\d.]+)")),
    )
    yield Quote(
        "operate.md",
        "1,000 simulated workers within {:.0f} ms (p99), at {:,.0f} trials a second",
        tuple(value("scale", f"{metric}, {BUSY}") for metric in ("time to lease, p99", "trials stored")),
    )
    yield from _of_gpus()


def _of_algorithm() -> Iterator[Quote]:
    page, operators = (
        "algorithm.md",
        "geometric mean of 12 operators: latency with {} relative to everything, {}",
    )

    def without(part: str) -> float:
        return value("ablation", operators.format(part, "after 64 trials"))

    yield Quote(page, "one sketch only: {:.2f} |", (without("limited space"),))
    yield Quote(page, "5.1 evolution | | {:.2f} |", (without("no evolution"),))
    yield Quote(page, "{:.2f}; without the estimate: {:.2f} |", tuple(map(without, NO_MODEL)))
    crossed = (
        "geometric mean of {}: estimated latency of the best program relative to mutation alone, "
        "20% of each generation by crossover"
    )
    yield Quote(
        page,
        "{:.3f}; layers by Winograd: {:.3f} |",
        tuple(1 / value("crossover", crossed.format(one)) for one in ("28 layers", "4 layers by Winograd")),
    )
    equal = (
        "median of all networks: trials with equal shares relative to {}, "
        "to reach the latency after 50% of all trials"
    )
    allocator = value("allocation", equal.format("the allocator"))
    yield Quote(page, "equal shares: {:.2f} |", (allocator,))
    for title, part in (("epsilon-greedy", "random picks"), ("similar tasks", "similarity")):
        ratio = allocator / value("allocation", equal.format(f"the allocator without {part}"))
        yield Quote(page, f"6.2 {title} | | {{:.2f}} |", (ratio,))


def _of_when() -> Iterator[Quote]:
    for title, peer, files in (
        ("ONNX Runtime", "ONNX Runtime", (AVX512, AVX2)),
        ("OpenVINO", "OpenVINO", (AVX512, AVX2)),
        ("torch.compile, seven networks", "torch.compile (max-autotune)", (AVX512,)),
    ):
        cells = [ratios(one, peer) for one in files]
        assert {len(one) for one in cells} == {7 if "torch" in peer else 10}
        yield Quote(
            "when.md",
            f"| {title} |" + " {:.2f} ({:.2f} to {:.2f}) |" * len(cells),
            tuple(one for cell in cells for one in (geometric_mean(cell), min(cell), max(cell))),
        )
    yield Quote(
        "when.md",
        "ViT-B/16 {:.2f}.",
        (1 / value("networks_vit_b16", f"vit_b16: latency relative to {PEER}"),),
    )
    of_openvino = "{}: latency relative to OpenVINO, {}"
    yield Quote(
        "when.md",
        "takes {:.2f}, {:.2f}, {:.2f} and {:.2f} times as long as OpenVINO's for ResNet-18",
        tuple(
            value(f"element_types_amx_{one}", of_openvino.format(one, "int8"))
            for one in ("resnet18", "resnet50", "mobilenet_v2", "bert_base")
        ),
    )
    for element_type, file, sentence in (
        (
            "int8",
            "element_types_avx2_int8",
            "it takes {:.2f} and {:.2f} times for ResNet-18 and MobileNet-V2",
        ),
        ("int8w7", "element_types_avx2_int8w7", "with , {:.2f} and {:.2f},"),
    ):
        yield Quote(
            "when.md",
            sentence,
            tuple(value(file, of_openvino.format(one, element_type)) for one in ("resnet18", "mobilenet_v2")),
        )
    yield Quote(
        "when.md",
        "ResNet-50, EfficientNet-B0 and BERT-base {:.2f}, {:.2f} and {:.2f}.",
        tuple(
            value(f"element_types_avx2_{one}", of_openvino.format(one, "int8w7"))
            for one in ("resnet50", "efficientnet_b0", "bert_base")
        ),
    )
    yield Quote(
        "when.md",
        "one of a billion parameters decodes {:.2f} times as fast",
        (value("decoders_1b_4_bits", "llama-1b-4-bit: decode rate relative to llama.cpp"),),
    )
    yield Quote(
        "when.md",
        "tunefarm's ResNet-18 takes {:.2f} and its BERT-base {:.2f} of MetaSchedule's latency",
        tuple(
            value(f"networks_metaschedule_{one}", f"{one}: latency relative to MetaSchedule")
            for one in ("resnet18", "bert_base")
        ),
    )


def _of_benchmarks() -> Iterator[Quote]:
    page = "benchmarks.md"
    peaks = {value(f"{AVX512}_{network}", f"{network}: calibrated peak") for network in NETWORKS}
    zen4, slower, zen5 = (
        value(f"{AVX2}_{network}", f"{network}: calibrated peak") for network in ("resnet50", "dcgan", "gpt2")
    )
    assert set(map(round, peaks)) == {round(zen4)}
    yield Quote(page, "calibrated peak is {:.0f} GFLOP/s with AVX-512 and with AVX2", (zen4,))
    yield Quote(page, "a slower Zen 4 ({:.0f} GFLOP/s) and a Zen 5 ({:.0f} GFLOP/s)", (slower, zen5))
    for files, network in itertools.product((AVX512, AVX2), NETWORKS):
        machine = results(f"{files}_{network}").machine
        found = re.findall(r"(?:apache-tvm|onnxruntime|openvino) (\d+\.\d+)", machine)
        yield Quote(page, "TVM {}, ONNX Runtime {} and OpenVINO {}.", (*map(float, found),))
    iree = sorted(ratios(AVX512, "IREE") + ratios(AVX2, "IREE"))
    yield Quote(page, "IREE took {:.1f} to {:.0f} times as long as tunefarm", (iree[0], iree[-3]))
    yield Quote(page, "and {:.0f} and {:.0f} times for 3D-ResNet-18", (*iree[-2:],))
    for condition, sentence in (
        (
            "without trials",
            "{:.2f} times the latency of ONNX Runtime with AVX-512 and {:.2f} times with AVX2",
        ),
        ("after a trial for each subgraph", "one trial for each subgraph, it takes {:.2f} and {:.2f} times"),
    ):
        each = tuple(compiled(file, condition) for file in ("compiled_avx512", "compiled_avx2"))
        yield Quote(page, sentence, each)
    rates = (
        value(f"{AVX512}_{network}", f"{network}: trials a second, from start to finish")
        for network in ("mobilenet_v2", "resnet18", "bert_base")
    )
    yield Quote(page, "{:.1f} for MobileNet-V2, {:.1f} for ResNet-18 and {:.1f} for BERT-base.", (*rates,))
    slowest = [
        max(
            one.spread[1]
            for network in NETWORKS
            for one in results(f"{files}_{network}").figures
            if one.name == f"{network}: latency relative to {PEER}" and one.spread is not None
        )
        for files in (AVX512, AVX2)
    ]
    assert round(slowest[0], 2) == round(slowest[1], 2)
    yield Quote(page, "slower at p90: {:.2f} with AVX-512 and AVX2.", (slowest[0],))
    far = value(f"{AVX2}_efficientnet_b0", "efficientnet_b0: deviation relative to the allowed one")
    yield Quote(page, "{:.1f} times as far for EfficientNet-B0 with AVX2.", (far,))
    slower_by = sorted(
        100 * one.value - 100
        for network in NETWORKS
        for one in results(f"{AVX512}_{network}").figures
        if one.name == f"{network}: published latency relative to its kernels"
    )
    yield Quote(page, "within 5% of its kernels: {:.0f} to {:.0f}% slower.", (slower_by[0], slower_by[-1]))
    off = value("disturbed", f"median difference of published latencies from a user's process, {BESIDE_BUSY}")
    yield Quote(page, "beside a busy process: {:.0f}% in the median of five.", (off,))
    allocator = (
        "median of all networks: trials with equal shares relative to the allocator, "
        "to reach the latency after 50% of all trials"
    )
    yield Quote(page, "needs {:.1f} times fewer trials than equal shares", (value("allocation", allocator),))
    slow = [1 / ratio for ratio in ratios(SSE42, PEER, SSE42_NETWORKS)]
    yield Quote(
        page,
        "With SSE4.2, nine networks take {:.2f} times as long as the fastest peer in the mean ({:.2f} to "
        "{:.2f}, EfficientNet-B0)",
        (geometric_mean(slow), min(slow), max(slow)),
    )
    batch = value("networks_avx2_resnet18_batch8", f"resnet18-batch-8: latency relative to {PEER}")
    yield Quote(page, "ResNet-18 at batch 8 with AVX2 takes {:.2f} times as long", (batch,))


def _of_gpus() -> Iterator[Quote]:
    page = "gpu-host.md"
    kernels = "resnet18: error of the sum of kernels"
    yield Quote(
        page,
        "one job of {:.0f} s ({:.0f} trials, none wrong): published at {:.3f} ms, {:.3f} ms in a process "
        "of its own; {:.1f} trials a second",
        (
            noted("gpu_h100", "resnet18: latency", r"in (\d+) s"),
            noted("gpu_h100", "resnet18: latency", r"(\d+) trials"),
            noted("gpu_h100", kernels, r"published: ([\d.]+) ms"),
            value("gpu_h100", "resnet18: latency"),
            value("gpu_h100", "resnet18: trials a second, while searching"),
        ),
    )
    networks = ("resnet18", "mobilenet_v2", "resnet50")
    right = "{}: pairs in the right order, {}"
    yield Quote(
        page,
        "ranks {:.0f}% of the pairs of ResNet-18's programs right, {:.0f}% of MobileNet-V2's and {:.0f}% of "
        "ResNet-50's",
        tuple(value("fit_h200", right.format(one, "fitted to the others")) for one in networks),
    )
    yield Quote(
        page,
        "the learned model ranks {:.0f}, {:.0f} and {:.0f}%",
        tuple(
            value("fit_h200", right.format(one, "learned from 64 trials of the others")) for one in networks
        ),
    )


def prose(document: str) -> str:
    """Return a document's words on one line, without code."""
    return " ".join(CODE.sub("", DOCUMENTS[document].read_text()).split())


def test_quoted_figures_are_recorded() -> None:
    wrong = [
        f"{quote.document}: {quote.text}" for quote in quotes() if quote.text not in prose(quote.document)
    ]
    assert wrong == []


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_each_number_of_a_document_has_a_source(document: str) -> None:
    text = prose(document)
    known = dict.fromkeys(quote.text for quote in quotes() if quote.document == document)
    for sentence in (*known, *WITHOUT_FILE.get(document, ())):
        assert sentence in text, f"{sentence} isn't in {document} any more"
        text = text.replace(sentence, "")
    assert NUMBER.findall(text) == [], "add a sentence to `quotes`, or the number to WITHOUT_FILE"
