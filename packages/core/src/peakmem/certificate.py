"""Certificates: proofs of a lower bound on the peak of every order, as JSON ``peakmem.certificate/1``.

A certificate speaks about one original `Program`, named by its digest, and needs no trust in whoever made it:
`peakmem.check` verifies it knowing only the program model.

Document
--------
- ``schema``:
    ``"peakmem.certificate/1"``.
- ``program``:
    ``{"digest": "sha256:..."}``, see `Program.digest`.
- ``artifact``:
    Where the program came from, or null: ``{"digest", "frontend", "version"}``. Recorded, and compared by
    ``peakmem check MODEL`` with the file given; the proof does not depend on it.
- ``lower_bound``:
    L, in bytes: every order has a peak of at least L.
- ``orders``:
    Body path -> order as statement ids (positions in the given order); ``""`` is the program itself. All bodies listed.
- ``peak``:
    Peak of these orders, in bytes. ``lower_bound == peak`` proves that they are optimal.
- ``proofs``:
    Body path -> ``{"lower_bound": L_path, "root": k, "nodes": [...]}``. The entry ``""`` proves the ``lower_bound``
    of the document; it may be missing only where that is 0. A body without an entry has the lower bound 0. Bodies enter
    the statement around them as workspace: for a proof, the workspace of a statement is its own plus the largest
    *proved* lower bound of its bodies (every order of a body has at least that peak, and the peak of the whole is
    monotone in workspaces).

Proof nodes
-----------
``nodes`` is a list; a node refers to others by index, and only to *smaller* indices, so a proof is well founded.
Every node proves, in a context (a DAG of precedences, and a state ``S`` from which the rest must be completed):
*no completion of S that honours the DAG stays within B = L - 1*. The root is proved for the program's own dependences
and the empty state. A node may be referred to from several places; it must be valid in the context of each. The contexts of
a proof may number 16 for each node (plus 1024), so that sharing does not blow up the work. Nodes that the root does not
reach are no part of the proof and are ignored.
Strict ancestors, descendants and births are those of the DAG of the context.

- ``{"kind": "entry"}``:
    The bytes resident at state S alone exceed B: rest(S) >= L. (The steps before and after S need at least that.)
- ``{"kind": "forward", "trap": [ids], "exits": [{"statement": v, "flow": F}, ...]}``:
    ``trap`` is a down-set T with S <= T, T not all statements. Exits are *all* statements outside T whose predecessors
    are all in T. Each flow shows cut(v | anc(v) + S, T) >= L. (The first statement outside T that a completion runs is an
    exit, run at a state between.) A single statement's bound is the trap of everything that does not follow it.
- ``{"kind": "backward", "trap": [ids], "entries": [{"statement": v, "flow": F}, ...]}``:
    ``trap`` is an up-set R, disjoint from S, with V - R - S not empty. Entries are *all* statements of V - R - S without
    a successor in V - R. Each flow shows cut(v | V - R - v, V - v - desc(v)) >= L. (The last statement outside R that a
    completion runs is an entry.)
- ``{"kind": "precedence", "arcs": [{"before": u, "after": v, "at": u or v, "flow": F}, ...], "then": k}``:
    Only at the empty state. Every order within B runs ``before`` ahead of ``after``. ``at == after``: forbidding u is too
    dear: cut(v | anc(v), V - v - desc(v) - u - desc(u)) >= L. ``at == before``: forcing v is too dear:
    cut(u | anc(u) + v + anc(v), V - u - desc(u)) >= L. The arcs are justified in the DAG of this node, all of them added
    at once for node ``then``. u and v must be incomparable.
- ``{"kind": "cycle", "statements": [v0, v1, ...]}``:
    Each v_i directly precedes v_(i+1), and the last the first, in the DAG of the context. The DAG of a precedence node's
    ``then`` may be cyclic; only a cycle node may stand there in that case.
- ``{"kind": "branch", "pair": [u, v], "first": k1, "second": k2}``:
    Only at the empty state; u and v incomparable. k1 is proved with u before v, k2 with v before u.
- ``{"kind": "reverse", "then": k}``:
    Only at the empty state of the program's own dependences. k is proved for the empty state of the *mirror image*: the
    program run backwards in time. There statement i is called n - 1 - i (buffers keep their ids), dependences are turned
    round, what is resident at entry is pinned and what is pinned is resident at entry. An order and its reversal have
    the same memory at every step. Everything below k speaks about the mirror image.
- ``{"kind": "waypoint", "state": [ids], "then": k}``:
    ``state`` is a down-set W, S <= W, each member of which precedes every non-member in the DAG, so every order passes
    through W. k is proved for the state W.
- ``{"kind": "expand", "children": {"v": k or null, ...}}``:
    One child for *each* statement v ready at S (predecessors all in S), of which there must be one. null: mem(S, v) >= L.
    Otherwise k is proved for the state S + v.
- ``{"kind": "move", "statement": v, "then": k}``:
    v is ready, mem(S, v) <= B and rest(S + v) <= rest(S): if S has a completion within B, so has S + v. k is proved for
    S + v.
- ``{"kind": "jump", "path": [v, ...], "flow": F, "then": k}``:
    The path leads from S to T with every mem <= B, and T minimizes rest over all down-sets X with S <= X <= T: the
    flow shows least rest(X | S, T) >= rest(T). Then S has a completion within B only if T has. k is proved for T.

Flows
-----
A flow for cut(v | L, U) (or for the least rest on [L, U], with no v) shows a lower bound on the cheapest state. Its value
is

    constant + what leaves the source,

with ``constant`` = workspace(v) + bytes touched by v + bytes of buffers not touched by v that are resident at *every*
state of [L, U]: at entry or with a birth in L; and pinned or with a toucher outside U (v itself is a toucher that was
excluded). A flow is a list of triples ``[from, to, amount]`` with amounts > 0, no arc twice, between the nodes

* ``"s"`` (all of L), ``"t"`` (everything outside U), an integer: an undecided statement (in U, not in L),
* ``"b<i>"``: buffer i, ``"j<i>"``: join of the births of buffer i; i is the buffer's id. Only buffers that v does not
  touch and that the constant does not hold.

over the arcs

* dependence ``[u, p]``, p a direct predecessor of u in the DAG, both undecided: unlimited;
* entry of a buffer at entry or born in L: ``["s", "b<i>"]``, capacity bytes(i);
* entry of another buffer with exactly one birth p: ``[p, "b<i>"]``, capacity bytes(i); p undecided (a buffer whose
  births are all outside U has no nodes);
* entry of another buffer with several births: ``[p, "j<i>"]`` for each undecided birth p, unlimited, and
  ``["j<i>", "b<i>"]``, capacity bytes(i);
* exit of a buffer: ``["b<i>", u]`` to each undecided toucher u, unlimited; ``["b<i>", "t"]``, unlimited, if it is pinned
  or has a toucher outside U (v is never counted as one: v does not touch it).

Conservation holds at every node but s and t. Flows need not be maximum.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

SCHEMA = "peakmem.certificate/1"


@dataclass(frozen=True)
class Certificate:
    """A certificate document; see the module's description.

    Attributes
    ----------
    document : dict
        JSON-ready.
    """

    document: dict[str, Any]

    @property
    def lower_bound(self) -> int:
        return int(self.document["lower_bound"])

    @property
    def peak(self) -> int:
        return int(self.document["peak"])

    def to_json(self) -> dict[str, Any]:
        return self.document

    def to_bytes(self) -> bytes:
        """The file's bytes: sorted keys, one trailing newline, the same for the same document."""
        return json.dumps(self.document, sort_keys=True, separators=(",", ":")).encode() + b"\n"
