"""The fingerprint of a SavedModel: what it computes, however TensorFlow happened to write it.

Each export numbers functions anew and writes variables in another order, so the files of two exports of one
model differ. Here the digest of an operation is that of its name, its attributes and the digests of its
inputs, down to arguments, constants and the values of variables.
"""

import graphlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_object_graph_pb2, trackable_object_graph_pb2

from tfrank.common import checks, files
from tfrank.common.checks import InputError

# The entry of a checkpoint that says which object has which variable.
OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Attributes that only name something. Those that begin with "_" repeat what others say.
NAMES = ("shared_name", "container", "debug_name")


def fingerprint(folder: str) -> str:
    """Returns 16 hexadecimal digits of the SHA-256 of all that the signatures of a SavedModel compute.

    Raises:
        InputError: the folder has no SavedModel of TensorFlow 2, or it is damaged.
    """
    try:
        files.check_regular(folder, links=True)
        with files.without_wildcards(folder) as path:
            return _of_signatures(path)
    except InputError:
        raise
    except (OSError, LookupError, ValueError, RecursionError, tf.errors.OpError) as error:
        reason = checks.reason(error).rstrip(".")
        raise InputError(
            f"{folder} is not a SavedModel of an embedding model ({reason}). Give the folder of one, or"
            " export it again."
        ) from None


def _of_signatures(folder: str) -> str:
    meta = tf.__internal__.saved_model.parse_saved_model(folder).meta_graphs[0]
    objects = _Objects(meta, _values(os.path.join(folder, "variables", "variables")))
    roots = meta.object_graph_def.nodes[:1]
    signatures = [place for root in roots for name, place in _children(root) if name == "signatures"]
    if not signatures:  # TensorFlow 1 has written it.
        return _of_files(folder)
    return _digest(*objects.functions_of(signatures[0])).hex()[:16]


def _of_files(folder: str) -> str:
    parts: list[str | bytes] = []
    for here, folders, names in os.walk(folder):
        folders.sort()
        for path in (os.path.join(here, name) for name in sorted(names)):
            with files.open_regular(path) as file:
                parts += [os.path.relpath(path, folder), hashlib.file_digest(file, "sha256").digest()]
    return _digest(*parts).hex()[:16]


def _values(prefix: str) -> dict[int, bytes]:
    """The digests of the variables of a checkpoint, by the numbers of the objects that have them."""
    if not os.path.exists(f"{prefix}.index"):
        return {}
    reader = tf.train.load_checkpoint(prefix)
    objects = trackable_object_graph_pb2.TrackableObjectGraph.FromString(reader.get_tensor(OBJECTS))
    return {
        place: _digest(*(_of_value(reader.get_tensor(one.checkpoint_key)) for one in node.attributes))
        for place, node in enumerate(objects.nodes)
        if node.attributes
    }


def _of_value(value: np.ndarray | bytes) -> bytes:
    array = np.asarray(value)
    content = array.tobytes() if array.dtype != object else repr(array.tolist())
    return _digest(str(array.dtype), str(array.shape), content)


def _children(node: saved_object_graph_pb2.SavedObject) -> list[tuple[str, int]]:
    """The names and numbers of the objects that an object has."""
    return sorted((child.local_name, child.node_id) for child in node.children)


class _Objects:
    """The digests of the objects of a SavedModel: variables, constants, tables and those with functions.

    Args:
        meta: the graph and its objects.
        values: the digests of the values of variables and of what tables hold, by the object's number.
    """

    def __init__(self, meta: meta_graph_pb2.MetaGraphDef, values: Mapping[int, bytes]):
        self._objects, self._values = meta.object_graph_def, values
        self._functions = _Functions(meta.graph_def.library.function)
        self._constants = {
            node.name: self._functions.of_node(node, []) for node in meta.graph_def.node if node.op == "Const"
        }

    def functions_of(self, place: int, whole: bool = True) -> list[str | bytes]:
        """The names and digests of the functions that an object has."""
        parts: list[str | bytes] = []
        for name, child in _children(self._objects.nodes[place]):
            node = self._objects.nodes[child]
            called = [node.bare_concrete_function.concrete_function_name, *node.function.concrete_functions]
            for function in filter(None, called):
                places = self._objects.concrete_functions[function].bound_inputs
                bound = [self._of_object(one, whole) for one in places]
                parts += [name, self._functions.of_function(function, bound)]
        return parts

    def _of_object(self, place: int, whole: bool) -> bytes:
        """The digest of an object that a function holds; the functions by which it is made, if whole."""
        node, kind = self._objects.nodes[place], self._objects.nodes[place].WhichOneof("kind") or ""
        if kind == "constant":
            return self._constants[node.constant.operation]
        itself = self._values.get(place) or getattr(node, kind).SerializeToString(deterministic=True)
        return _digest(kind, itself, *(self.functions_of(place, whole=False) if whole else ()))


class _Functions:
    """The digests of the functions of a SavedModel, each made when it is asked for."""

    def __init__(self, functions: Iterable[function_pb2.FunctionDef]):
        self._functions = {function.signature.name: function for function in functions}
        self._digests: dict[str, bytes] = {}

    def of_function(self, name: str, bound: Sequence[bytes] = ()) -> bytes:
        """The digest of what a function returns and does; `bound` are the digests of its last arguments."""
        function = self._functions[name]
        arguments = [argument.name for argument in function.signature.input_arg]
        found = {argument: _digest("argument", str(place)) for place, argument in enumerate(arguments)}
        found |= dict(zip(arguments[len(arguments) - len(bound) :], bound, strict=True))
        nodes = {node.name: node for node in function.node_def}
        inputs = {name: [_source(one) for one in node.input] for name, node in nodes.items()}
        for place in graphlib.TopologicalSorter(inputs).static_order():
            if place not in found:
                digests = [_input(found, one) for one in nodes[place].input if not one.startswith("^")]
                before = [_input(found, one) for one in nodes[place].input if one.startswith("^")]
                found[place] = self.of_node(nodes[place], [*digests, *sorted(before)])
        returned = [_input(found, function.ret[output.name]) for output in function.signature.output_arg]
        return _digest(*returned, *sorted(found[place] for place in function.control_ret.values()))

    def of_node(self, node: node_def_pb2.NodeDef, inputs: Sequence[bytes]) -> bytes:
        """The digest of an operation, given those of its inputs."""
        parts: list[str | bytes] = [self._called(node.op) if node.op in self._functions else node.op, *inputs]
        for key in sorted(node.attr):
            if not key.startswith("_") and key not in NAMES:
                parts += [key, self._of_attribute(node.attr[key])]
        return _digest(*parts)

    def _of_attribute(self, value: attr_value_pb2.AttrValue) -> bytes:
        called = [value.func.name] if value.HasField("func") else [one.name for one in value.list.func]
        if not any(called):
            return value.SerializeToString(deterministic=True)
        return _digest(*(self._called(name) for name in called))

    def _called(self, name: str) -> bytes:
        if name not in self._digests:
            self._digests[name] = self.of_function(name) if name in self._functions else _digest(name)
        return self._digests[name]


def _source(reference: str) -> str:
    """The operation or argument that an input refers to: `^name`, `name` or `name:output:number`."""
    return reference.lstrip("^").partition(":")[0]


def _input(found: Mapping[str, bytes], reference: str) -> bytes:
    """The digest of an input."""
    source = _source(reference)
    return _digest(found[source], reference.replace(source, "", 1))


def _digest(*parts: str | bytes) -> bytes:
    """The SHA-256 of parts, each with its length before it."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.digest()
