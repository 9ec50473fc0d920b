import type { Trajectory } from '../../../session/trajectories/trajectories.ts'

/** The rows as they are, each told on its way. */
export function* told(rows: Iterable<Trajectory>, onRow: (row: Trajectory) => void): Generator<Trajectory> {
  for (const row of rows) {
    onRow(row)
    yield row
  }
}
