"""The one place that talks to HiGHS: a program of rows over columns in [0, 1].

HiGHS runs on one thread with a fixed seed, so equal input gives an equal result unless a time limit
cuts it short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from fissile.select.program import Row

TOLERANCE = 1e-6  # of rows
SILENT = {"output_flag": False, "threads": 1, "random_seed": 0}


@dataclass(frozen=True, slots=True)
class Answer:
    """What HiGHS found: `values` is None without a feasible point; `bound` is proven."""

    values: np.ndarray | None
    bound: float
    is_infeasible: bool


class Quiet(highspy.Highs):
    """Silent before its constructor enables callbacks, which else greets on standard output."""

    def enableCallbacks(self) -> None:
        self.silent()
        super().enableCallbacks()


class Model:
    """min cost . x over x in [0, 1], rows added as they are found."""

    def __init__(self, costs: Sequence[float], integral: bool) -> None:
        self.solver = Quiet()
        for option, value in SILENT.items():
            self.solver.setOptionValue(option, value)
        self.columns = len(costs)
        self.costs = np.asarray(costs, np.float64)
        self.integral = integral
        self.counts: dict[int, np.ndarray] = {}
        none = np.empty(0, np.int32)
        self.solver.addCols(
            self.columns,
            self.costs,
            np.zeros(self.columns),
            np.ones(self.columns),
            0,
            np.zeros(self.columns, np.int32),
            none,
            np.empty(0, np.float64),
        )
        if integral:
            kinds = np.full(self.columns, highspy.HighsVarType.kInteger)
            self.solver.changeColsIntegrality(
                self.columns, np.arange(self.columns, dtype=np.int32), kinds
            )

    def add(self, rows: Iterable[Row]) -> int:
        """Add rows; the number of them."""
        starts: list[int] = []
        indices: list[int] = []
        values: list[float] = []
        lower: list[float] = []
        for row in rows:
            starts.append(len(indices))
            terms = Counter(row.plus)
            indices.extend(terms.keys())
            values.extend(map(float, terms.values()))
            lower.append(float(row.least) if row.minus is None else 0.0)
            if row.minus is not None:
                indices.append(row.minus)
                values.append(-1.0)
        if lower:
            self.solver.addRows(
                len(lower),
                np.asarray(lower, np.float64),
                np.full(len(lower), highspy.kHighsInf),
                len(indices),
                np.asarray(starts, np.int32),
                np.asarray(indices, np.int32),
                np.asarray(values, np.float64),
            )
        return len(lower)

    def add_at_most_one(self, groups: Sequence[Sequence[int]]) -> int:
        """Rows `sum <= 1` over groups of columns; the number of them."""
        for group in groups:
            self.solver.addRow(
                -highspy.kHighsInf, 1.0, len(group),
                np.asarray(group, np.int32), np.ones(len(group)),
            )  # fmt: skip
        return len(groups)

    def add_limits(self, uses: np.ndarray) -> None:
        """Rows `sum uses[r] x <= 1`; `uses` is [resources, columns].

        Of an integral program, columns of equal use are counted by an integer n = sum x, and the
        rows read `sum uses[r] n <= 1`: where repeated blocks vie for a resource, branching on how
        many ends long before branching on which.
        """
        if self.integral:
            kinds, kind_of = np.unique(uses, axis=1, return_inverse=True)
            used = [k for k, share in enumerate(kinds.T) if share.any()]
            columns = [
                self._add_count(np.flatnonzero(kind_of.reshape(-1) == k), kinds[:, k].max())
                for k in used
            ]
            self._add_shares(kinds[:, used], columns)
        else:
            self._add_shares(uses, range(self.columns))

    def _add_shares(self, uses: np.ndarray, columns: Sequence[int]) -> None:
        for row in uses:
            some = np.flatnonzero(row)
            who = np.asarray(columns, np.int32)[some]
            self.solver.addRow(-highspy.kHighsInf, 1.0, len(who), who, row[some])

    def _add_count(self, who: np.ndarray, share: float) -> int:
        """A column that counts `who`; the share of one of them bounds it."""
        count = self.solver.getNumCol()
        self.counts[count] = who
        self.solver.addVar(0.0, min(len(who), int(1 / share + TOLERANCE)))
        self.solver.changeColIntegrality(count, highspy.HighsVarType.kInteger)
        signs = np.append(np.ones(len(who)), -1.0)
        indices = np.append(who, count).astype(np.int32)
        self.solver.addRow(0.0, 0.0, len(indices), indices, signs)
        return count

    def solve_relaxation(self, seconds: float) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Values, reduced costs and objective; None unless solved to the end."""
        # run time of HiGHS adds up over calls, and so does its limit
        self.solver.setOptionValue("time_limit", self.solver.getRunTime() + max(seconds, 0.0))
        self.solver.run()
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self.solver.getSolution()
        return (
            np.asarray(solution.col_value),
            np.asarray(solution.col_dual),
            self.solver.getInfo().objective_function_value,
        )

    def solve_program(self, seconds: float, start: Sequence[int], gap: float) -> Answer:
        """Branch and cut from the solution `start`; stop at the relative gap."""
        self.solver.setOptionValue("time_limit", self.solver.getRunTime() + max(seconds, 0.0))
        self.solver.setOptionValue("mip_rel_gap", gap)
        self.solver.setOptionValue("mip_abs_gap", 0.0)
        if start:
            point = highspy.HighsSolution()
            point.col_value = self._with_counts(start).tolist()
            self.solver.setSolution(point)
        self.solver.run()
        answer = self._answer()
        if answer is None:
            # HiGHS 1.16: if presolve leaves nothing better than the start, offsets can be lost
            self.solver.clearSolver()
            self.solver.run()
            answer = self._answer()
        return answer or Answer(None, 0.0, False)

    def _with_counts(self, chosen: Sequence[int]) -> np.ndarray:
        """The point of `chosen`, with the counts of `add_limits`."""
        point = np.zeros(self.solver.getNumCol())
        point[list(chosen)] = 1.0
        for count, who in self.counts.items():
            point[count] = point[who].sum()
        return point

    def _answer(self) -> Answer | None:
        """None if the objective that HiGHS reports is not that of its point."""
        if self.solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return Answer(None, float("inf"), True)
        info = self.solver.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return Answer(None, info.mip_dual_bound, False)
        values = np.asarray(self.solver.getSolution().col_value)[: self.columns]
        objective = float(self.costs @ values)
        if abs(objective - info.objective_function_value) > 1e-6 * max(1.0, abs(objective)):
            return None
        return Answer(values, info.mip_dual_bound, False)
