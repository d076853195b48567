"""Handing a set of saved values to torch's partitioner; importing this module imports torch.

Torch takes the joint graph apart as always, cleans it, marks what must be saved and extracts both graphs: only the choice of
the values is ours.
"""

from __future__ import annotations

import hashlib
import logging
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch._functorch import config, partitioners
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.utils.checkpoint import CheckpointPolicy

from peakmem_inductor.costs import multiplies
from peakmem_inductor.effects import operator_effects
from peakmem_inductor.joint import Joint, Kind, Value

log = logging.getLogger("peakmem_inductor")

Chooser = Callable[[Any, Any, int, Callable[[float | None], list[Any]]], list[Any]]


class Choosing(CustomPartitionerFn):  # type: ignore[misc]
    """Torch's partitioner, with somebody asked what to save.

    Parameters
    ----------
    chooser : callable
        Given the joint graph, what torch knows of its nodes, the number of results of the forward, and torch's choice as a
        function of the budget; of None for the budget that is set.
    """

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        original = partitioners.choose_saved_values_set

        def choose(graph: Any, info: Any, memory_budget: float = 1) -> list[Any]:
            fixed = memory_budget != config.activation_memory_budget  # an annotation of the user's in the program

            def torchs(budget: float | None) -> list[Any]:
                return list(original(graph, info, memory_budget=memory_budget if fixed or budget is None else budget))

            return self.chooser(graph, info, kwargs["num_fwd_outputs"], torchs)

        partitioners.choose_saved_values_set = choose
        try:
            return partitioners.min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)
        finally:
            partitioners.choose_saved_values_set = original

    def uuid(self) -> Any:
        return None  # nothing of it is kept in a cache


class SavedValues(Choosing):
    """Save exactly the values of these names, beside the arguments that the backward reads.

    To run the same set under plain Inductor, set ``torch._inductor.config.custom_partitioner_fn`` to one of these.

    Parameters
    ----------
    names : sequence of str
        Torch's names of nodes of the joint graph.
    digest : str, optional
        Of the joint graph that they are meant for, see `digest_of`; on any other one torch chooses.
    """

    def __init__(self, names: Sequence[str], digest: str = "") -> None:
        super().__init__(self._choose)
        self.names, self.digest = tuple(names), digest

    def _choose(self, graph: Any, info: Any, results: int, torchs: Callable[[float | None], list[Any]]) -> list[Any]:
        if (self.digest and digest_of(graph) != self.digest) or not {n.name for n in graph.nodes}.issuperset(self.names):
            log.warning("this joint graph is not the one that was searched: torch chooses what is saved")
            return torchs(None)
        wanted = {*self.names, *(n.name for n in info.inputs)}
        return [n for n in graph.nodes if n.name in wanted]

    def uuid(self) -> Any:
        return ("peakmem-saved/1", self.names, self.digest)

    def __reduce__(self) -> Any:
        return (SavedValues, (self.names, self.digest))


def digest_of(graph: Any) -> str:
    """Of a joint graph: its nodes, what they read, shapes and types."""
    rows = [(n.op, n.name, str(n.target), str(n.args), str(n.kwargs), str(n.meta.get("val"))) for n in graph.nodes]
    return hashlib.blake2b(repr(rows).encode(), digest_size=16).hexdigest()


def read_joint(graph: Any, info: Any, results: int, pure: Collection[str] = ()) -> Joint:
    """What `peakmem_inductor.joint` needs of a joint graph that torch is about to part.

    Raises
    ------
    ValueError
        Where sizes are symbolic.
    """
    types = partitioners.get_default_op_list()
    nodes = [n for n in graph.nodes if n.op != "output"]
    number = {n: i for i, n in enumerate(nodes)}
    (end,) = graph.find_nodes(op="output")
    outputs = list(torch.utils._pytree.arg_tree_leaves(*end.args))
    overwritten = {n.args[0] for n in nodes if mutates(n)}
    values: list[Value] = []
    for node in nodes:
        value = node.meta.get("val")
        if any(isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool) for v in (value, *getattr(value, "shape", ()))):
            raise ValueError("sizes change")
        kind = _kind(node, types, values[number[node.args[0]]].kind if node.target is operator.getitem else "")
        shown = node.args[0] if node.target is operator.getitem else node
        sums = kind == "loop" and isinstance(shown.target, torch._ops.OpOverload) and shown.target._schema.name.split("::")[1] in SUMS
        points = _summed(shown) if sums else _elements(value)
        values.append(
            Value(
                node.name,
                tuple(sorted({number[n] for n in node.all_input_nodes})),
                kind=kind,
                bytes=_bytes(value),
                points=points,
                sums=sums and isinstance(value, torch.Tensor),
                macs=_macs(node),
                workspace=_workspace(node),
                forward=info.is_required_fw(node),
                backward=node in info.tangents_closure,
                barred=_barred(node, overwritten, pure),
                savable=isinstance(value, torch.Tensor) and not partitioners.must_recompute(node),
            )
        )
    given, gradients = ([number[n] for n in part if isinstance(n, torch.fx.Node)] for part in (outputs[:results], outputs[results:]))
    return Joint(values, given, gradients)


def mutates(node: Any) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _kind(node: Any, types: Any, of: str) -> Kind:
    """What a node is; ``of`` is the kind of the tuple it takes an element of."""
    if node.op != "call_function":
        return "argument"
    if node.target is operator.getitem:
        return "part" if of == "tuple" else "view" if of == "view" else "loop"
    if types.is_view(node) or getattr(node.target, "overloadpacket", None) in (torch.ops.aten._unsafe_view, torch.ops.aten.reshape):
        return "view"
    from torch._inductor.lowering import fallbacks, lowerings

    if node.target in fallbacks or node.target not in lowerings or multiplies(str(node.target)):
        return "call" if isinstance(node.meta.get("val"), torch.Tensor) else "tuple"
    return "loop"


def _bytes(value: Any) -> int:
    return value.untyped_storage().nbytes() if isinstance(value, torch.Tensor) and not value.is_sparse else 0


def _elements(value: Any) -> int:
    return max((v.numel() for v in (value if isinstance(value, tuple | list) else (value,)) if isinstance(v, torch.Tensor)), default=0)


def _summed(node: Any) -> int:
    """Iterations of a sum; negative where the last dimension stays."""
    source = node.all_input_nodes[0].meta["val"]
    dims = node.args[1] if len(node.args) > 1 else None
    dims = [dims] if isinstance(dims, int) else dims
    along = isinstance(dims, list | tuple) and dims and source.dim() and all(isinstance(d, int) and d % source.dim() != source.dim() - 1 for d in dims)
    return int(-source.numel() if along else source.numel())


SUMS = frozenset(
    {"sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "var", "var_mean", "std", "argmax", "argmin", "logsumexp",
     "prepare_softmax_online", "native_layer_norm", "native_group_norm", "cumsum"}
)  # fmt: skip


def _macs(node: Any) -> int:
    """Of one node, as torch's flop counter counts them."""
    from torch.utils.flop_counter import flop_registry

    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return 0
    args, kwargs = torch.utils._pytree.tree_map(_value, (node.args, node.kwargs))
    try:
        return int(count(*args, **kwargs, out_val=node.meta["val"])) // 2
    except Exception as error:
        log.debug("MACs of %s: %s", node, error)
        return 0


def _value(x: Any) -> Any:
    return x.meta.get("val") if isinstance(x, torch.fx.Node) else x


_workspaces: dict[str, int] = {}


def _workspace(node: Any) -> int:
    """Bytes that a convolution uses inside, measured by running it alone on zeros of its shapes."""
    from peakmem_inductor.allocator import counting

    if "convolution" not in str(node.target):
        return 0
    args, kwargs = torch.utils._pytree.tree_map(_value, (node.args, node.kwargs))
    key = f"{node.target} {args} {kwargs} {torch.get_num_threads()}"
    if key not in _workspaces:
        try:
            from torch._subclasses.fake_tensor import unset_fake_temporarily

            with unset_fake_temporarily(), torch.no_grad():
                args, kwargs = torch.utils._pytree.tree_map(_zeros, (args, kwargs))
                with counting() as counter:
                    counter.mark()
                    result = node.target(*args, **kwargs)
                    high, now, _ = counter.mark()
                del result
            _workspaces[key] = max(0, high - now)
        except Exception as error:
            log.info("the workspace of %s is taken as 0: %s", node, error)
            _workspaces[key] = 0
    return _workspaces[key]


def _zeros(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    made = torch.empty_strided(tuple(x.shape), tuple(x.stride()), dtype=x.dtype)
    return made.zero_()


def _barred(node: Any, overwritten: Collection[Any], pure: Collection[str]) -> str:
    """Why a node is never computed again: what torch never does whatever the budget, and what it would do wrongly."""
    if node.op != "call_function":
        return "the step overwrites it" if node in overwritten else ""
    if node.target is operator.getitem:
        return "must be saved" if node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE else ""
    if partitioners.must_recompute(node):
        return ""  # the user's own: torch sets the generator back for it
    if node.meta.get("recompute") == CheckpointPolicy.MUST_SAVE:
        return "must be saved"
    if not isinstance(node.target, torch._ops.OpOverload):
        return "it is no plain operator"
    if mutates(node):
        return "it writes to its arguments"
    effects = operator_effects(str(node.target), pure)
    if not effects.known:
        return "what else it does is not known"
    return "it draws random numbers" if effects.random and not _without_dropout(node) else ""


def _without_dropout(node: Any) -> bool:
    """Whether an operator that draws for its dropout alone, as attention does, has none."""
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[i] if i < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return bool(given == 0)
    return False
