"""What a SavedModel would run, looked at before TensorFlow loads it: the graph in one may be any program.

An operation that TensorFlow calls stateful may reach out of the model: to files, other machines or Python. So
of those, only the ones are let through that an embedding model needs (`MODEL_STATE`). Of the others, which
compute from their inputs alone, the ones are refused that reach out all the same (`REACHING_OUT`). Variables
are saved and restored by functions of their own, which may read and write files as long as nothing else in
the model names them.
"""

import re
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfrank.common.checks import InputError

# Variables, calls and branches, random numbers, tables and arrays in memory.
MODEL_STATE = re.compile(
    r"VarHandleOp|VariableV2|ReadVariableOp|Assign(Add|Sub)?VariableOp|VarIsInitializedOp|VariableShape"
    r"|ResourceGather(Nd)?|DisableCopyOnRead|DestroyResourceOp"
    r"|StatefulPartitionedCall|If|While|Case|Assert|CheckNumerics(V2)?|Empty|GuaranteeConst"
    r"|Random(Uniform|UniformInt|StandardNormal|Shuffle|Gamma|Poisson|PoissonV2)|TruncatedNormal|Multinomial"
    r"|Stateful(Uniform|UniformInt|UniformFullInt|StandardNormalV2|TruncatedNormal)|StatelessRandomGetAlg"
    r"|Rng(Skip|ReadAndSkip)|SampleDistortedBoundingBox(V2)?"
    r"|(Anonymous|Mutable|AnonymousMutable)?HashTable(V2)?|InitializeTableV2|LookupTable\w+V2"
    r"|TensorArray(Grad|Write|Read|Gather|Scatter|Concat|Split|Size|Close)?V3|Stack(V2|PushV2|PopV2|CloseV2)"
)
REACHING_OUT = re.compile(
    # Read files, or any pipeline of data, which may.
    r"ReadFile|MatchingFiles|InitializeTableFromTextFile|GenerateVocabRemapping|ImmutableConst|\w*Proto(V2)?"
    r"|\w*(Dataset|Snapshot|Reader)\w*"
    # Run Python, or code of the processor.
    r"|PyFuncStateless|XlaCustomCall\w*|MlirPassthroughOp"
    # Send what they see to a file or an address.
    r"|Debug\w+|Copy(Host)?"
)
# What the functions do besides that save and restore variables.
SAVER = {"SaveV2", "MergeV2Checkpoints", "RestoreV2", "ShardedFilename"}
# What an operation does, by its name.
REASONS = {
    r"Py": "runs Python",
    r"Xla|Mlir": "runs code of its own",
    r"Rpc|Send|Recv|Remote|Collective|DataService|Nccl": "speaks to other processes",
    r"Write|Save|Checkpoint|Print|Debug|Copy": "may write files",
    r"File|Read|Restore|Dataset|Iterator|Proto|Text|Vocab|ImmutableConst|Snapshot": "may read files",
}


def check_operations(folder: str) -> None:
    """InputError where a SavedModel holds an operation that could do more than compute embeddings.

    Raises:
        OSError: there is no SavedModel, or it is damaged.
    """
    found = sorted(set(filter(_refused, _operations(folder))))
    if found:
        listed = ", ".join(f"{name} ({_reason(name)})" for name in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise InputError(
            f"{folder} holds operations that could do more than compute embeddings: {listed}{more}. It was"
            " not loaded. Give --trust_saved_model if you know who made it."
        )


def _operations(folder: str) -> Iterator[str]:
    """The names of all operations that TensorFlow may run of a SavedModel, once it has loaded it."""
    saved = tf.__internal__.saved_model.parse_saved_model(folder)
    for graph in saved.meta_graphs:
        functions = graph.graph_def.library.function
        # As `tf.saved_model.load` decides it. Of what TensorFlow 2 wrote only functions are run.
        modern = len(saved.meta_graphs) == 1 and graph.HasField("object_graph_def")
        names = {node.op for node in graph.graph_def.node} if not modern else set()
        savers = _savers(graph) if modern else set()
        for function in functions:
            inside = {node.op for node in function.node_def}
            names |= inside - SAVER if function.signature.name in savers else inside
        # A call bears the function's name. One named like an operation is judged as that.
        calls = {f.signature.name for f in functions}
        yield from (name for name in names if name not in calls or op_def_registry.get(name))


def _savers(graph: tf.compat.v1.MetaGraphDef) -> set[str]:
    """The functions that save and restore variables, as long as nothing else names them."""
    library = graph.graph_def.library
    called = {node.name: node.attr["f"].func.name for node in graph.graph_def.node if "f" in node.attr}
    ends = (graph.saver_def.save_tensor_name.partition(":")[0], graph.saver_def.restore_op_name)
    parts = [(f.signature.name, f.SerializeToString()) for f in library.function]
    parts += [("", part.SerializeToString()) for part in (graph.object_graph_def, *library.gradient)]
    # TensorFlow exchanges functions that say which interface they implement.
    exchanged = {f.signature.name for f in library.function if "api_implements" in f.attr}
    return {
        name
        for name in map(called.get, ends)
        if name
        and name not in exchanged
        and not any(name.encode() in content for owner, content in parts if owner != name)
    }


def _refused(name: str) -> bool:
    definition = op_def_registry.get(name)
    if definition is None or REACHING_OUT.fullmatch(name):
        return True
    return definition.is_stateful and not MODEL_STATE.fullmatch(name)


def _reason(name: str) -> str:
    if op_def_registry.get(name) is None:
        return "is not one of TensorFlow's"
    return next((why for part, why in REASONS.items() if re.search(part, name)), "may act outside of it")
