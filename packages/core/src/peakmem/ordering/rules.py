"""Named switches for what makes the search fast. Every one may be turned off without changing what is true.

``benchmarks/ablation.py`` turns each off in turn and prints what it costs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Rules:
    """What bounds and search may use; all on by default."""

    waypoints: bool = True
    safe_moves: bool = True
    safe_jumps: bool = True
    hot_statements: bool = True
    components: bool = True
    start_traps: bool = True
    search_traps: bool = True
    memo: bool = True
    absorption: bool = True
    stale_prices: bool = True
    followers: bool = True
    mirror: bool = True
    beam: bool = True
    precedence: bool = True


ALL = Rules()

REASONS = {
    "waypoints": "A state that every order passes splits the problem into parts that are solved apart.",
    "safe_moves": "A statement within the budget that leaves no more than it found can run at once.",
    "safe_jumps": "A state with the least rest of all on the way may be kept for good: the search never returns behind it.",
    "hot_statements": "One cut for a statement at the best order's highest steps often proves what a long search would.",
    "components": "What nothing connects is ordered apart and merged; a bound for one, beside the least of the others, holds for all.",
    "start_traps": "A trap from the very start often proves the bound before anything is searched.",
    "search_traps": "A state from which a trap cannot be left within the budget needs no searching.",
    "memo": "A set of executed statements is searched once, however it was reached.",
    "absorption": "Before a cut, statements that only free memory are run: the network gets smaller.",
    "stale_prices": "Exits get cheaper as a trap grows, so an old price may swallow an exit without a new cut.",
    "followers": "From the state that serves one exit, others may be served without a cut.",
    "mirror": "Run backwards, a program has the same peak and often a much easier search.",
    "beam": "A few dozen partial orders side by side find a good order where depth-first search gets lost.",
    "precedence": "A budget forces some statements before others; with these arcs the traps close.",
}
"""One sentence for each switch: why it is sound and what it is good for."""

assert set(REASONS) == {f.name for f in fields(Rules)}
