"""Runtimes of decoders: each appends tokens to its cache and returns the logits of the last one."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tunefarm_runtime
from numpy.typing import NDArray

from benchmarks.timing.contestants import spawn_process
from examples.networks.decoders import DecoderScale

Array = NDArray[Any]


class Step(Protocol):
    """A decoder. A call appends tokens, (1, tokens), and returns logits; the last row is the last token's."""

    def reset(self) -> None:
        """Empty the cache."""

    def __call__(self, tokens: Array) -> Array: ...


@dataclass(frozen=True)
class Runtime:
    """A runtime that can be loaded in another process. `module` is the Python module that it needs.

    `load` takes the file or folder of the model, the decoder's scale, and the number of threads.
    """

    name: str
    module: str
    load: Callable[[Path, DecoderScale, int], Step]

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


class Compiled:
    """The compiled decoder."""

    def __init__(self, folder: Path, _scale: DecoderScale, threads: int) -> None:
        self._model = tunefarm_runtime.load(folder, threads=threads)

    def reset(self) -> None:
        self._model.reset()

    def __call__(self, tokens: Array) -> Array:
        return np.asarray(self._model.step(tokens)[0])


class OnnxRuntime:
    """The ONNX file in ONNX Runtime, which takes the cache as inputs and returns it. `held` has the inputs
    that stay the same.
    """

    def __init__(
        self, file: Path, _scale: DecoderScale, threads: int, held: Mapping[str, Array] | None = None
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._outputs = [one.name for one in self._session.get_outputs()]
        self._inputs = {one.name for one in self._session.get_inputs()}
        self._held = held or {}
        self._past: dict[str, Array] = {}
        self.reset()

    def reset(self) -> None:
        self._past = {
            one.name: np.zeros([0 if isinstance(extent, str) else extent for extent in one.shape], np.float32)
            for one in self._session.get_inputs()
            if one.name.startswith("past")
        }

    def __call__(self, tokens: Array) -> Array:
        before = next(iter(self._past.values())).shape[2]
        feed = {**self._past, **self._held, **_inputs(tokens, before, self._inputs)}
        found = dict(zip(self._outputs, self._session.run(None, feed), strict=True))
        self._past = {name: found[name.replace("past_key_values", "present")] for name in self._past}
        return np.asarray(found["logits"])


class OnnxRuntimeGenAi:
    """The ONNX file in onnxruntime-genai, which moves the cache from outputs to inputs itself."""

    def __init__(self, file: Path, scale: DecoderScale, threads: int) -> None:
        genai = importlib.import_module("onnxruntime_genai")
        folder = file.with_suffix(".genai")
        folder.mkdir(exist_ok=True)
        (folder / file.name).write_bytes(file.read_bytes())
        config = _genai_config(file.name, scale, threads)
        (folder / "genai_config.json").write_text(json.dumps(config))
        self._genai = genai
        self._model = genai.Model(str(folder))
        self._longest = scale.longest
        self.reset()

    def reset(self) -> None:
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(max_length=self._longest, do_sample=False)
        self._generator = self._genai.Generator(self._model, params)

    def __call__(self, tokens: Array) -> Array:
        self._generator.append_tokens(tokens.astype(np.int32))
        return np.asarray(self._generator.get_logits())


class OpenVino:
    """The ONNX file in OpenVINO, with its cache made a state, as OpenVINO GenAI runs it."""

    def __init__(self, file: Path, _scale: DecoderScale, threads: int) -> None:
        import openvino
        from openvino._offline_transformations import apply_make_stateful_transformation

        model = openvino.Core().read_model(str(file))
        pasts = [name for one in model.inputs for name in one.names if name.startswith("past")]
        states = {name: name.replace("past_key_values", "present") for name in pasts}
        apply_make_stateful_transformation(model, states)
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
        self._inputs = {one.any_name for one in model.inputs}
        self._before = 0

    def reset(self) -> None:
        self._request.reset_state()
        self._before = 0

    def __call__(self, tokens: Array) -> Array:
        outputs = self._request.infer(_inputs(tokens, self._before, self._inputs))
        self._before += tokens.shape[1]
        return np.asarray(outputs["logits"])


class LlamaCpp:
    """A GGUF file of the same weights in llama.cpp."""

    def __init__(self, file: Path, scale: DecoderScale, threads: int) -> None:
        self._model = importlib.import_module("llama_cpp").Llama(
            str(file),
            n_ctx=scale.longest,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        self._words = scale.words

    def reset(self) -> None:
        self._model.reset()

    def __call__(self, tokens: Array) -> Array:
        self._model.eval(tokens[0].tolist())
        return np.ctypeslib.as_array(self._model._ctx.get_logits_ith(-1), (1, 1, self._words)).copy()


# The ONNX file whose activations aren't rounded.
IN_FLOATS = Runtime("ONNX Runtime in floats", "onnxruntime", OnnxRuntime)
LLAMA_CPP = Runtime("llama.cpp", "llama_cpp", LlamaCpp)
TUNEFARM = Runtime("tunefarm", "tunefarm_runtime", Compiled)
PEERS = (
    Runtime("ONNX Runtime", "onnxruntime", OnnxRuntime),
    Runtime("ONNX Runtime GenAI", "onnxruntime_genai", OnnxRuntimeGenAi),
    Runtime("OpenVINO", "openvino", OpenVino),
)


def _inputs(tokens: Array, before: int, names: set[str]) -> dict[str, Array]:
    """Return the inputs among `names` for new tokens after `before` earlier ones."""
    total = before + tokens.shape[1]
    given = {
        "input_ids": tokens,
        "attention_mask": np.ones((1, total), np.int64),
        "position_ids": np.arange(before, total)[None],
    }
    return {name: value for name, value in given.items() if name in names}


def _genai_config(file: str, scale: DecoderScale, threads: int) -> dict[str, Any]:
    decoder = {
        "session_options": {"intra_op_num_threads": threads, "provider_options": []},
        "filename": file,
        "head_size": scale.size,
        "hidden_size": scale.features,
        "num_attention_heads": scale.heads,
        "num_key_value_heads": scale.grouped_heads,
        "num_hidden_layers": scale.layers,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "position_ids": "position_ids",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    ids = {"bos_token_id": 0, "eos_token_id": scale.words - 1, "pad_token_id": scale.words - 1}
    model = {
        "type": "llama",
        "context_length": scale.longest,
        "vocab_size": scale.words,
        **ids,
        "decoder": decoder,
    }
    return {"model": model, "search": {"max_length": scale.longest, "past_present_share_buffer": False}}


@dataclass(frozen=True)
class Round:
    """The seconds of one prompt and of the tokens after it, and the logits of the last one."""

    prefill_s: float
    decode_s: float
    logits: Array


class Process:
    """A decoder in a process of its own, so that runtimes share neither threads nor memory."""

    def __init__(self, runtime: Runtime, model: Path, scale: DecoderScale, threads: int) -> None:
        """Load the model. Raises the runtime's exceptions."""
        self._executor: ProcessPoolExecutor = spawn_process()
        try:
            self._executor.submit(_load, runtime, model, scale, threads).result()
        except BaseException:
            self._executor.shutdown()
            raise

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown()

    def run(self, prompt: Array, decoded: int) -> Round:
        """Append a prompt to an empty cache, then some of its tokens again, one by one."""
        return self._executor.submit(_run, prompt, decoded).result()

    def peak_bytes(self) -> int:
        """Return the most memory that the process has had, without what it had before it loaded the model."""
        return self._executor.submit(_peak_bytes).result()


# In the child, which serves one decoder: the decoder, and the bytes of memory before it was loaded.
_loaded: list[Step] = []
_before: list[int] = []


def _load(runtime: Runtime, model: Path, scale: DecoderScale, threads: int) -> None:
    _before.append(_memory("VmRSS"))
    _loaded.append(runtime.load(model, scale, threads))


def _run(prompt: Array, decoded: int) -> Round:
    (step,) = _loaded
    step.reset()
    begin = time.perf_counter()
    logits = step(prompt)
    middle = time.perf_counter()
    for token in prompt[0, :decoded]:
        logits = step(np.array([[token]]))
    end = time.perf_counter()
    return Round(middle - begin, end - middle, logits.reshape(-1, logits.shape[-1])[-1])


def _peak_bytes() -> int:
    return _memory("VmHWM") - _before[0]


def _memory(field: str) -> int:
    """Return a field of /proc/self/status in bytes. Unlike getrusage, its peak begins with the process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
